"""What attacks are built from: backbones, decoders, generation, optimizers; nothing here knows an attack."""
