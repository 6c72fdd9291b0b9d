"""Components of attacks: backbones, decoders, generation, optimizers; independent of any attack."""
