#!/usr/bin/env bash
# Known vulnerabilities of the pinned packages, by pip-audit in an environment of its own; needs the network, so CI does not
# run it:   benchmarks/pip_audit.sh            (more options go to pip-audit: --format json, --ignore-vuln ID)
# Exit code: 0 where every package was looked up and none has a known vulnerability, else that of pip-audit, which is not 0.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet pip-audit
# --strict: a package that cannot be looked up is an error, and not a line among others.
# --no-deps: the file names every package, and nothing is installed to find out more.
"$scratch/venv/bin/pip-audit" --strict --requirement constraints.txt --no-deps --disable-pip "$@"
