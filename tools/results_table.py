#!/usr/bin/env python3
"""Markdown tables of finished runs.  Usage: tools/results_table.py RUN..."""
import json
import math
import sys


def load(run):
    with open(f"{run}/summary.json", encoding="utf-8") as f:
        return json.load(f)


def number(x, digits=2):
    return "" if x is None else f"{x:.{digits}f}"


def gap(ppl, fp):
    return None if ppl is None or fp is None else math.log(ppl / fp)


def runs_table(runs):
    print("| run | scheme | seed | prefix | FP | FP + prefix | initialised | trained | ln(init/FP) | ln(trained/FP) | minutes | peak MiB |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for run, s in runs:
        p = s["ppl"]
        print(f"| {run.rstrip('/').split('/')[-1]} | {s['scheme']} | {s['seed']} | {len(s['prefix']['ids'])} | {number(p['fp'], 3)} | "
              f"{number(p['fp_prefix'], 3)} | {number(p['init'], 3)} | {number(p['final'], 3)} | {number(gap(p['init'], p['fp']), 3)} | "
              f"{number(gap(p['final'], p['fp']), 3)} | {number(s['seconds']['total'] / 60, 1)} | {s['peak_rss_bytes'] / 2**20:.0f} |")


def rows_table(run, s):
    print(f"\nRows of {run} ({s['protocol']}):\n\n| row | perplexity | ln(ppl/FP) |\n|---|---|---|")
    for row in s["table"]:
        print(f"| {row['row']} | {number(row['ppl'], 3)} | {number(gap(row['ppl'], s['ppl']['fp']), 3)} |")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    runs = [(run, load(run)) for run in sys.argv[1:]]
    runs_table(runs)
    for run, s in runs:
        if len(s["table"]) > 4:
            rows_table(run, s)


main()
