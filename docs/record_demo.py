#!/usr/bin/env python3
"""Records a command on a real terminal as an animated SVG.

    pip install pyte
    docs/record_demo.py --out docs/demo.svg --speed 2.5 -- pipe run pipelines/demo.yaml --ignore-ledger

The command runs in a pseudo-terminal of 80 columns. What it writes goes through a terminal emulator (pyte), and each change of
the screen becomes a frame. The picture loops, has no script, and follows the reader's light or dark setting. A reader who
asked for reduced motion sees the last frame.
"""

import argparse
import codecs
import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from html import escape
from pathlib import Path

import pyte

COLUMN, ROW, SIZE, MARGIN = 8.4, 19, 14, 14
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
# name: (light, dark)
COLORS = {
    "back": ("#ffffff", "#161b22"),
    "edge": ("#d0d7de", "#30363d"),
    "default": ("#1f2328", "#e6edf3"),
    "dim": ("#59636e", "#9198a1"),
    "red": ("#b3261e", "#ff7b72"),
    "green": ("#116329", "#56d364"),
    "brown": ("#7d4e00", "#e3b341"),
    "blue": ("#0550ae", "#79c0ff"),
    "magenta": ("#7a3ec2", "#d2a8ff"),
    "cyan": ("#0b6271", "#56d4dd"),
}


class DimScreen(pyte.Screen):
    """pyte does not know dim text (SGR 2); here it is a color."""

    def select_graphic_rendition(self, *attrs, **kwargs):
        super().select_graphic_rendition(*[attr for attr in attrs if attr != 2], **kwargs)
        if 2 in attrs and self.cursor.attrs.fg == "default":
            self.cursor.attrs = self.cursor.attrs._replace(fg="dim")


def record(command, columns, rows):
    """Runs the command on a terminal and yields (seconds, screen as a list of rows)."""
    screen = DimScreen(columns, rows)
    stream = pyte.Stream(screen)
    stream.feed("\x1b[32m$\x1b[0m " + " ".join(command) + "\r\n")
    yield 0.0, snapshot(screen)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(columns), LINES=str(rows))
        for name in ("CI", "NO_COLOR"):
            os.environ.pop(name, None)
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    began = time.monotonic()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        ready, _, _ = select.select([terminal], [], [], 0.05)
        if ready:
            try:
                data = os.read(terminal, 65536)
            except OSError:
                break
            if not data:
                break
            stream.feed(decoder.decode(data))
            # A redraw of the block comes in several writes.
            if select.select([terminal], [], [], 0.01)[0]:
                continue
        yield time.monotonic() - began, snapshot(screen)
    yield time.monotonic() - began, snapshot(screen)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        print(f"{command[0]} ended with {status}", file=sys.stderr)


def snapshot(screen):
    """The screen as rows of (column, text, color, bold)."""
    return [tuple(pieces(screen.buffer[row], screen.columns)) for row in range(screen.lines)]


def pieces(line, columns):
    column = 0
    while column < columns:
        cell = line[column]
        style = (cell.fg, cell.bold)
        start, text = column, ""
        while column < columns and (line[column].fg, line[column].bold) == style:
            text += line[column].data or " "
            column += 1
        kept = text.rstrip()
        lead = len(kept) - len(kept.lstrip())
        if kept:
            yield start + lead, kept[lead:], cell.fg, cell.bold


def thin(frames, interval):
    """One frame for each change of the screen, at most one in `interval` seconds; the last one always."""
    kept = []
    for moment, rows in frames:
        if kept and rows == kept[-1][1]:
            continue
        if kept and moment - kept[-1][0] < interval:
            kept[-1] = (kept[-1][0], rows)
        else:
            kept.append((moment, rows))
    return kept


def svg(frames, columns, rows, speed, hold, title):
    width, height = columns * COLUMN + 2 * MARGIN, rows * ROW + 2 * MARGIN
    starts = [moment / speed for moment, _ in frames]
    whole = starts[-1] + hold
    lines, names, body = {}, [], []
    for index, (_, screen) in enumerate(frames):
        uses = []
        for row, line in enumerate(screen):
            if line:
                name = lines.setdefault(line, f"l{len(lines)}")
                uses.append(f'<use href="#{name}" y="{row * ROW}"/>')
        body.append(f'<svg y="{index * height:g}" height="{height}">{"".join(uses)}</svg>')
    for line, name in lines.items():
        names.append(f'<g id="{name}">{"".join(piece(*one) for one in line)}</g>')
    steps = "".join(
        f"{100 * start / whole:.3f}%{{transform:translateY({-index * height:g}px)}}" for index, start in enumerate(starts)
    )
    last = f"transform:translateY({-(len(frames) - 1) * height:g}px)"
    color = lambda which: "".join(f"--{name}:{pair[which]};" for name, pair in COLORS.items())
    classes = "".join(f".{name}{{fill:var(--{name})}}" for name in COLORS)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}">'
        f"<title>{escape(title)}</title><style>"
        f":root{{{color(0)}}}@media(prefers-color-scheme:dark){{:root{{{color(1)}}}}}{classes}"
        f"text{{font:{SIZE}px {FONT};white-space:pre}}.b{{font-weight:600}}.edge{{stroke:var(--edge);fill:var(--back)}}"
        f"#play{{animation:play {whole:.2f}s steps(1,end) infinite}}@keyframes play{{{steps}100%{{{last}}}}}"
        f"@media(prefers-reduced-motion:reduce){{#play{{animation:none;{last}}}}}"
        f'</style><defs>{"".join(names)}</defs>'
        f'<rect class="edge" x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="8"/>'
        f'<svg x="{MARGIN}" y="{MARGIN}" width="{columns * COLUMN:g}" height="{rows * ROW}"><g id="play">{"".join(body)}</g></svg>'
        "</svg>\n"
    )


def piece(column, text, color, bold):
    name = color if color in COLORS else {"yellow": "brown", "brightblack": "dim", "white": "default"}.get(color, "default")
    length = f' textLength="{len(text) * COLUMN:g}"' if len(text) > 1 else ""
    weight = " b" if bold else ""
    return f'<text class="{name}{weight}" x="{column * COLUMN:g}" y="{SIZE}"{length}>{escape(text, quote=False)}</text>'


def main():
    parser = argparse.ArgumentParser(description="Record a command on a real terminal as an animated SVG.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--columns", type=int, default=80)
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--speed", type=float, default=1.0, help="how much faster than real time it is shown")
    parser.add_argument("--interval", type=float, default=0.8, help="seconds between two frames, as recorded")
    parser.add_argument("--hold", type=float, default=6.0, help="seconds that the last frame stays")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    frames = thin(record(args.command, args.columns, args.rows), args.interval)
    text = svg(frames, args.columns, args.rows, args.speed, args.hold, " ".join(args.command))
    args.out.write_text(text)
    print(f"{args.out}: {len(frames)} frames, {len(text.encode()) // 1000} kB, {frames[-1][0]:.0f} s recorded", file=sys.stderr)


if __name__ == "__main__":
    main()
