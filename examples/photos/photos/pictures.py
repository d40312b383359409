"""Pictures that are made and not downloaded: sky, sun and hills, the same for the same id."""

import random

from django.utils.html import format_html, format_html_join

SKIES = (
    "1b2a5a d96d7e f6c177", "0f4c75 5fa8d3 cfe8ef", "3b1f4e b8527a ffb88a",
    "20463f 7bb58c f2e6b6", "2d3047 8d6a9f f0cfc1", "134074 e07a5f f8e0a2",
)  # fmt: skip
HILL = '<path d="M0,300 L{} L400,300Z" opacity=".{}"/>'
PICTURE = (
    '<svg viewBox="0 0 400 300" role="img" aria-label="{}" preserveAspectRatio="xMidYMid slice">'
    '<linearGradient id="sky{}" x2="0" y2="1"><stop stop-color="#{}"/><stop offset=".55" '
    'stop-color="#{}"/><stop offset=".8" stop-color="#{}"/></linearGradient>'
    '<rect width="400" height="300" fill="url(#sky{})"/>'
    '<circle cx="{}" cy="{}" r="{}" fill="#fff" opacity=".75"/><g fill="#{}">{}</g></svg>'
)


def picture(number, label):
    """Return the SVG of an id."""
    chance = random.Random(number)
    top, middle, low = chance.choice(SKIES).split()
    hills = []
    for depth in range(4):
        height, line = 165 + 35 * depth, []
        for x in range(0, 401, 40):
            height = min(max(height + chance.randint(-18, 18), 130 + 30 * depth), 290)
            line.append(f"{x},{height}")
        hills.append((" L".join(line), 3 + 2 * depth))
    sun = chance.randint(60, 340), chance.randint(60, 150), chance.randint(12, 34)
    drawn = format_html_join("", HILL, hills)
    return format_html(PICTURE, label, number, top, middle, low, number, *sun, top, drawn)
