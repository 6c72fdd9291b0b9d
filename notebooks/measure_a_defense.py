# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Measure a defense against an adaptive attacker
#
# A defense changes stored vectors. Against an attacker who was trained on undefended ones, nearly everything seems to
# help. The attacker to measure with was trained on vectors that are defended in the same way. This notebook measures
# two defenses with both. It takes less than three minutes on two cores, so the attack is a small one: it names the
# words of a text. Take `attack=geia` and more steps for whole texts.

# %%
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt

os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import unembed

logging.disable(logging.INFO)
Path("key.txt").write_text(os.urandom(32).hex())
defenses = {
    "none": ["defense=none"],
    "noise": ["defense=noise", "defense.level=0.05"],
    "rotation": ["defense=rotation", "defense.key_file=key.txt"],
}


def run(*words):
    """Run a command; what it says if it fails."""
    done = subprocess.run([sys.executable, "-m", "unembed", *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)


def f1(directory):
    """Word F1 of a run or an evaluation, with its 95 % interval over the test texts."""
    return json.loads(Path(directory, "metrics.json").read_text())["token_f1"]


# %% [markdown]
# The naive attacker is trained once, and evaluated behind each defense. The adaptive one is trained behind each.

# %%
small = ["datamodule.source.sentences=6000", "datamodule.limit_valid=100", "datamodule.limit_test=300"]
train = ["train", "attack=bag_of_words", "trainer.max_steps=200", "trainer.accelerator=cpu", *small]
run(*train, "run_dir=runs/none")
naive, adaptive = {"none": f1("runs/none")}, {"none": f1("runs/none")}
for name, words in list(defenses.items())[1:]:
    run("evaluate", "run=runs/none", *words, f"output_dir=runs/naive_{name}")
    run(*train, *words, "defense.adaptive=true", f"run_dir=runs/{name}")
    naive[name], adaptive[name] = f1(f"runs/naive_{name}"), f1(f"runs/{name}")
    print(f"{name:10} naive {naive[name]:5.1f}   adaptive {adaptive[name]:5.1f}")

# %% [markdown]
# A defense also costs the search something. The audit says what share of a row's ten nearest neighbours stays:

# %%
texts = [json.loads(line)["reference"] for line in Path("runs/none/predictions.jsonl").read_text().splitlines()]
tried = [" ".join(words) for words in list(defenses.values())[1:]]
report = unembed.audit_vectors(unembed.embed(texts), defenses=tried)
kept = dict(zip(defenses, (one.neighbours for one in report.tried), strict=True))
print({name: f"{share:.0%}" for name, share in kept.items()})

# %%
nearest = json.loads(Path("runs/none/baseline.json").read_text())["token_f1"]
figure, axes = plt.subplots(figsize=(7, 3.6))
for shift, scores, who, colour in ((-0.2, naive, "naive", "#0d7a70"), (0.2, adaptive, "adaptive", "#b1502b")):
    bars = axes.bar([place + shift for place in range(len(defenses))], scores.values(), 0.38, color=colour, label=who)
    axes.bar_label(bars, fmt="%.0f")
axes.axhline(nearest, linestyle="--", color="#9a9fa6", label="nearest training text")
axes.set(xticks=range(len(defenses)), ylabel="word F1, %", ylim=(0, 100))
axes.set_xticklabels([f"{name}\n{kept[name]:.0%} of neighbours kept" for name in defenses], fontsize="small")
axes.legend(ncols=3, loc="upper left")
figure.tight_layout()

# %% [markdown]
# A secret rotation stops the naive attacker alone: it removes no information. Noise costs both the attacker and the
# search. docs/defenses.md has our measurements, docs/access.md what attackers need.
