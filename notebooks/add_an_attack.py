# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Add an attack
#
# An attack is one Python file and one YAML file, outside of unembed (docs/extending.md has the contract). This one
# needs no training: least squares from the vectors of texts that the attacker knows to the words that these have. It
# takes a minute on two cores.

# %%
import json
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt

# %%
# %%writefile least_squares.py
"""Which words a text has, by least squares; their order is not recovered."""

from collections import Counter

import torch
from pydantic import PositiveFloat, PositiveInt

from unembed.attacks import Attack, Prediction


class LeastSquares(Attack):
    trainable = False

    def __init__(self, vocabulary: PositiveInt = 1000, guesses: PositiveInt = 8, ridge: PositiveFloat = 1.0) -> None:
        super().__init__()
        self.vocabulary, self.guesses, self.ridge = vocabulary, guesses, ridge

    def prepare(self, texts, artifacts):
        """Called once with the texts that the attacker knows; ``self.oracle`` embeds."""
        known = [set(text.lower().split()) for text in texts]
        words = [word for word, _ in Counter(word for one in known for word in one).most_common(self.vocabulary)]
        has = torch.tensor([[word in one for word in words] for one in known], dtype=torch.float32)
        vectors = self.oracle.embed(texts, "training")
        square = vectors.T @ vectors + self.ridge * torch.eye(vectors.shape[1])
        weights = torch.linalg.solve(square, vectors.T @ (has - has.mean(0)))
        torch.save({"words": words, "mean": has.mean(0), "weights": weights}, artifacts / "fit.pt")

    def build(self, dimension):
        """Called by every command that uses the attack."""
        self.fit = torch.load(self.artifacts / "fit.pt", weights_only=True)

    def propose(self, targets, oracle):
        """A prediction a vector."""
        scores = targets.vectors @ self.fit["weights"] + self.fit["mean"]
        best = scores.topk(self.guesses).indices.tolist()
        return [Prediction((" ".join(self.fit["words"][place] for place in row),), kind="set") for row in best]


# %% [markdown]
# The YAML file names the class; its keys are the constructor's arguments. Their types are checked before anything runs.

# %%
Path("configs/attack").mkdir(parents=True, exist_ok=True)
Path("configs/attack/least_squares.yaml").write_text("""# Which words a text has, by least squares
_target_: least_squares.LeastSquares
vocabulary: 1000   # words that can be guessed
guesses: 8         # words guessed for a text
ridge: 1.0         # weight of the penalty
""")


# %%
def unembed(*words):
    """Run a command; what it says."""
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-m", "unembed", *words], env=surroundings, capture_output=True, text=True)
    return done.stdout + done.stderr


small = ["datamodule.source.sentences=6000", "datamodule.limit_valid=100", "datamodule.limit_test=300"]
train = ["train", "--config-dir", "configs", *small]
print(unembed(*train, "attack=least_squares", "attack.ridge=-1", "run_dir=runs/none"))

# %%
print(unembed(*train, "attack=least_squares", "run_dir=runs/least_squares"))

# %% [markdown]
# It is a full attack: intervals, baselines, defenses and pages come with it, and the sentence that it reads less than a
# lookup of the nearest training text. Beside the classifier that unembed has:

# %%
unembed(*train, "attack=bag_of_words", "trainer.max_steps=300", "trainer.accelerator=cpu", "run_dir=runs/bag_of_words")
print(unembed("compare", "runs/least_squares", "runs/bag_of_words", "metrics=token_f1,micro_f1"))

# %%
scores = {
    name: json.loads(Path("runs", name, "metrics.json").read_text()) for name in ("least_squares", "bag_of_words")
}
scores["nearest training text"] = json.loads(Path("runs/least_squares/baseline.json").read_text())
figure, axes = plt.subplots(figsize=(6, 2.4))
bars = axes.barh(list(scores), [one["token_f1"] for one in scores.values()], color=["#b1502b", "#0d7a70", "#9a9fa6"])
axes.bar_label(bars, fmt="%.1f", padding=3)
axes.set(xlabel="word F1, %", xlim=(0, 100))
axes.invert_yaxis()
figure.tight_layout()

# %% [markdown]
# As a package of your own, `pip install` makes it available everywhere (docs/extending.md, "In a package of your own").
