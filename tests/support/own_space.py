"""What tests of attacks with a decoder of another space share: texts, a decoder's settings, and two tiny embedders."""

from __future__ import annotations

from support import tiny_settings

WHO, PLACES = ("ada", "bob", "cleo", "dan", "eve", "fay"), ("paris", "rome", "oslo")
TEXTS = [f"{a} {does} {b} in {place} ." for a in WHO for does in ("met", "saw") for b in WHO for place in PLACES]
SHORT = [*tiny_settings.FILES, "datamodule.batch_size=16"]
DECODER = [
    *tiny_settings.GEIA, "attack.backbone.vocabulary=300", "attack.decoding.max_new_tokens=10",
    "attack.decoding.beams=2",
]  # fmt: skip
OWN = {"_target_": "support.letters.LettersAndSigns"}
VICTIM = {"_target_": "support.letters.Rotated"}
