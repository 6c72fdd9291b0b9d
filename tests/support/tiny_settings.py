"""Overrides of attacks that train in seconds on a processor; each test adds steps, beams and tokens."""

from __future__ import annotations

QUIET = [
    "trainer=cpu", "trainer.max_time=null", "trainer.precision=32-true", "logger=none", "~callbacks.progress",
]  # fmt: skip
FILES = [*QUIET, "datamodule=files", "datamodule.split_field=split", "datamodule.drop_repeated=false"]
SAVE_OFTEN = ["+callbacks.checkpoint.every_n_train_steps=5", "callbacks.checkpoint.train_time_interval=null"]
GEIA = ["attack=geia", "attack.backbone.layers=1", "attack.backbone.width=32", "attack.backbone.heads=2"]
INVERTER = [
    "attack=vec2text_inverter", "attack.backbone.width=32", "attack.backbone.heads=2", "attack.backbone.vocabulary=300",
    "attack.backbone.encoder_layers=1", "attack.backbone.decoder_layers=1", "attack.prefix.vectors=2",
]  # fmt: skip
CORRECTOR = ["attack=vec2text_corrector", "attack.layout.vectors=2"]
NEIGHBOR = [*QUIET, "attack=nearest_neighbor", "datamodule=files", "datamodule.split_field=split"]
