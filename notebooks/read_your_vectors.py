# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Read your vectors
#
# A vector store keeps a vector of each text, and often no text. Is the text gone? This notebook reads vectors back,
# first of sentences that you can change, then of a file of your own. It takes a minute on two cores.

# %%
import logging
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import unembed

logging.disable(logging.INFO)
attacker = unembed.load("minilm")
texts = [
    "I have two cats.",
    "My sister Anna lives in London.",
    "The patient was prescribed insulin on Monday.",
    "Please send the invoice to Mr. Weber.",
]
vectors = attacker.embed(texts)
print(vectors.shape, vectors[0, :5].round(3))

# %% [markdown]
# `vectors` is all that the attacker gets. Without a single query to the embedder:

# %%
read, cosines = attacker.invert(vectors, return_cosines=True)
for text, one, cosine in zip(texts, read, cosines, strict=True):
    print(f"{cosine:.3f}  {text}\n       {one}")

# %% [markdown]
# The cosine compares the vector of what was read with the one that was given. It needs no true text, so an attacker
# sees which texts are probably right.
#
# With the embedder at hand, `max_queries=100` searches further (docs/lexicon.md). The first search embeds some 41,000
# words, which takes a minute, once.
#
# ## A whole store
#
# `audit_vectors` says how much of a store comes back, with an interval. Put your own file in place of this one: it
# takes `.npy`, `.parquet` and vector databases (docs/audit.md). Without true texts the share is estimated.

# %%
names, places = ["Anna", "Tom", "Maria", "Sam"], ["London", "Berlin", "Madrid", "Boston", "Oslo"]
notes = [
    f"{name} lives in {place} and has {number} cats." for name in names for place in places for number in (2, 3, 4)
]
np.save("mine.npy", attacker.embed(notes))

report = unembed.audit_vectors("mine.npy", defenses=["defense=noise defense.level=0.05"])
share = report.readable
print(
    f"{len(notes)} vectors; readable, estimated: {share.value:.0%}, 95 % interval {share.low:.0%} to {share.high:.0%}"
)

# %% [markdown]
# Here the true texts are known, so it can be measured, and the estimate be checked:

# %%
measured = unembed.audit_vectors(np.load("mine.npy"), notes, defenses=[]).readable
print(f"readable, measured: {measured.value:.0%} ({measured.low:.0%} to {measured.high:.0%})")

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), width_ratios=(2, 1))
axes[0].hist(report.cosines, bins=20, range=(0, 1), color="#0d7a70")
axes[0].set(xlabel="cosine of what was read with the vector", ylabel="rows")
for place, one in enumerate((share, measured)):
    ends = [[100 * (one.value - one.low)], [100 * (one.high - one.value)]]
    axes[1].errorbar([place], [100 * one.value], yerr=ends, fmt="o", color="#b1502b", capsize=4)
axes[1].set(xticks=(0, 1), xticklabels=("estimated", "measured"), xlim=(-0.5, 1.5), ylim=(0, 100), ylabel="readable, %")
figure.tight_layout()

# %% [markdown]
# The page for the store's owner, in which texts are masked:

# %%
report.save("audit")
print(sorted(path.name for path in Path("audit").iterdir()))
