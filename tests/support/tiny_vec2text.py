"""Overrides of the smallest Vec2Text that trains, on the texts of a file; each test adds steps, beams and tokens."""

from __future__ import annotations

FILES = [
    "datamodule=files", "datamodule.split_field=split", "datamodule.drop_repeated=false", "trainer=cpu",
    "trainer.max_time=null", "trainer.precision=32-true", "logger=none", "~callbacks.progress",
]  # fmt: skip
INVERTER = [
    "attack=vec2text_inverter", "attack.backbone.width=32", "attack.backbone.heads=2", "attack.backbone.vocabulary=300",
    "attack.backbone.encoder_layers=1", "attack.backbone.decoder_layers=1", "attack.prefix.vectors=2",
]  # fmt: skip
CORRECTOR = ["attack=vec2text_corrector", "attack.layout.vectors=2"]
