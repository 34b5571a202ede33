#!/usr/bin/env python3
"""Opens pages of brick report in headless Chromium: no console errors, no picture empty, no texts one upon the other, no id twice.

usage: tools/check_page.py PAGE.html...      needs chromium; CHROMIUM names another program
A page that is known to be bad is opened first: if its faults are not found, nothing else that is said here counts.
"""
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import zlib

WIDTH, SCALE = 1000, 0.5
CHROMIUM = os.environ.get("CHROMIUM", "chromium")

# Runs in the page: what is drawn where.
PROBE = """
(() => {
  const seen = {}, twice = [];
  for (const e of document.querySelectorAll('[id]')) { if (seen[e.id]) twice.push(e.id); seen[e.id] = true; }
  const figures = [...document.querySelectorAll('figure')].map(f => {
    const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.top + scrollY, r.right, r.bottom + scrollY]; };
    const svg = f.querySelector('svg'), texts = svg ? [...svg.querySelectorAll('text')].filter(t => t.textContent.trim()) : [];
    const overlaps = [], r = texts.map(box), frame = svg ? box(svg) : [0, 0, 0, 0];
    for (let i = 0; i < r.length; i++) {
      if (r[i][0] < frame[0] - 1 || r[i][2] > frame[2] + 1 || r[i][1] < frame[1] - 1 || r[i][3] > frame[3] + 1)
        overlaps.push(texts[i].textContent + ' is cut off');
      for (let j = i + 1; j < r.length; j++) {
        const w = Math.min(r[i][2], r[j][2]) - Math.max(r[i][0], r[j][0]), h = Math.min(r[i][3], r[j][3]) - Math.max(r[i][1], r[j][1]);
        const turned = /rotate/.test(texts[i].parentNode.getAttribute('transform') || '') || /rotate/.test(texts[j].parentNode.getAttribute('transform') || '');
        if (w > 2 && h > 4 && !turned) overlaps.push(texts[i].textContent + ' / ' + texts[j].textContent);
      }
    }
    const shapes = svg ? [...svg.querySelectorAll('path, use, polygon, rect')].filter(e => { const b = box(e); return b[2] - b[0] + b[3] - b[1] > 0; }).length : 0;
    return {id: f.id, box: frame, shapes: shapes, texts: texts.length, overlaps: overlaps};
  });
  const out = document.createElement('pre');
  out.id = 'probe-result';
  out.textContent = JSON.stringify({twice: twice, figures: figures, height: document.documentElement.scrollHeight});
  document.body.appendChild(out);
})();
"""


def chromium(folder, *options):
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir=" + folder + "/profile",
               "--enable-logging=stderr", "--v=0", *options]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    if done.returncode != 0:
        raise SystemExit("chromium ended with %d:\n%s" % (done.returncode, done.stderr.decode(errors="replace")[-2000:]))
    return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def probe(folder, page):
    """The page with a script of ours, which its own policy would forbid."""
    with open(page, encoding="utf-8") as f:
        html = f.read()
    html, policies = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>\n', "", html)
    copy = os.path.join(folder, "probe.html")
    with open(copy, "w", encoding="utf-8") as f:
        f.write(html.replace("</body>", "<script>" + PROBE + "</script></body>"))
    dom, _ = chromium(folder, "--window-size=%d,1000" % WIDTH, "--dump-dom", "file://" + copy)
    found = re.search(r'<pre id="probe-result">(.*?)</pre>', dom, re.S)
    if not found:
        raise SystemExit(page + ": the probe gave nothing")
    text = found.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return json.loads(text), policies


def pixels(path):
    """Rows of an 8-bit RGB or RGBA file as Chromium writes it: a list of byte strings, and the bytes of a pixel."""
    with open(path, "rb") as f:
        data = f.read()
    at, packed = 8, b""
    while at < len(data):
        (size,), kind = struct.unpack(">I", data[at:at + 4]), data[at + 4:at + 8]
        body = data[at + 8:at + 8 + size]
        at += size + 12
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            bytes_of = {2: 3, 6: 4}[colour]
            assert depth == 8
        elif kind == b"IDAT":
            packed += body
    raw, stride, before, rows = zlib.decompress(packed), width * bytes_of, bytearray(width * bytes_of), []
    for y in range(height):
        filter_type, line = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        for i in range(stride):
            left = line[i - bytes_of] if i >= bytes_of else 0
            up = before[i]
            corner = before[i - bytes_of] if i >= bytes_of else 0
            if filter_type == 1:
                line[i] = (line[i] + left) & 255
            elif filter_type == 2:
                line[i] = (line[i] + up) & 255
            elif filter_type == 3:
                line[i] = (line[i] + (left + up) // 2) & 255
            elif filter_type == 4:
                p = left + up - corner
                a, b, c = abs(p - left), abs(p - up), abs(p - corner)
                line[i] = (line[i] + (left if a <= b and a <= c else up if b <= c else corner)) & 255
        rows.append(bytes(line))
        before = line
    return rows, bytes_of


def coloured(rows, bytes_of, box):
    """Part of the box that is neither white nor grey: what data is drawn in."""
    left, top, right, bottom = (int(v * SCALE) for v in box)
    n = hits = 0
    for row in rows[top:bottom]:
        for x in range(max(left, 0), right):
            r, g, b = row[x * bytes_of:x * bytes_of + 3]
            n += 1
            hits += max(r, g, b) - min(r, g, b) > 40
    return hits / n if n else 0


def faults(page):
    found = []
    with tempfile.TemporaryDirectory() as folder:
        result, policies = probe(folder, page)
        if policies != 1:
            found.append("no policy forbids scripts and the network")
        shot = os.path.join(folder, "page.png")
        _, messages = chromium(folder, "--window-size=%d,%d" % (WIDTH, result["height"]), "--force-device-scale-factor=%g" % SCALE,
                               "--screenshot=" + shot, "file://" + os.path.abspath(page))
        found += ["console: " + line for line in messages.splitlines() if ":CONSOLE" in line]
        found += ["id %s stands twice" % i for i in result["twice"]]
        rows, bytes_of = pixels(shot)
        if not result["figures"]:
            found.append("no picture at all")
        for figure in result["figures"]:
            part = coloured(rows, bytes_of, figure["box"])
            print("  %-20s %5d shapes %4d texts, %5.2f %% coloured" % (figure["id"], figure["shapes"], figure["texts"], 100 * part))
            if figure["shapes"] < 10 or figure["texts"] < 4 or part < 0.0005:
                found.append(figure["id"] + " is empty")
            found += ["%s: %s" % (figure["id"], text) for text in figure["overlaps"]]
    return found


BAD = """<!DOCTYPE html><html><head><meta http-equiv="Content-Security-Policy" content="default-src 'none'">
</head><body><img src="http://localhost:1/x.png"><p id="a"></p><figure id="a"><svg viewBox="0 0 600 100" width="600" height="100">
<text x="10" y="50">one text</text><text x="12" y="52">upon another</text><text x="590" y="20">beyond</text></svg></figure></body></html>
"""


def check_self():
    with tempfile.TemporaryDirectory() as folder:
        page = os.path.join(folder, "bad.html")
        with open(page, "w", encoding="utf-8") as f:
            f.write(BAD)
        found = "\n".join(faults(page))
        for fault in ("console", "twice", "is empty", "one text / upon another", "beyond is cut off"):
            if fault not in found:
                raise SystemExit("check_page: a bad page passes: no '%s' in\n%s" % (fault, found))


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    check_self()
    bad = 0
    for page in sys.argv[1:]:
        print(page)
        for fault in faults(page):
            print("  FAULT: " + fault)
            bad += 1
    print("check_page: %d pages, %d faults" % (len(sys.argv) - 1, bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
