#!/usr/bin/env bash
# The main job on the real model, or on a made one where the real model cannot be had. Goes on where it was stopped.
# Usage: scripts/demo.sh build/brick
set -euo pipefail
cd "$(dirname "$0")/.."

brick=$1
config=configs/demo.yaml
out=runs/demo
options=()
if ! { scripts/setup.sh model && scripts/model.sh; }; then
    out=runs/demo-synth
    config=configs/synth.yaml
    echo "demo: the real model is not there; running on a small made one, whose figures say nothing about real models" >&2
    if [ ! -d models/synth ]; then
        rm -rf models/synth.partial
        mkdir -p models
        "$brick" synth --out models/synth.partial
        mv models/synth.partial models/synth
    fi
fi
[ ! -d "$out" ] || options+=(--resume)

echo "demo: $brick run $config --out $out ${options[*]}" >&2
echo "demo: if it is stopped, \`make demo\` goes on from there; \`rm -r $out\` to start afresh" >&2
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} # threads that spin are slow where other programs run
exec "$brick" run "$config" --out "$out" "${options[@]}"
