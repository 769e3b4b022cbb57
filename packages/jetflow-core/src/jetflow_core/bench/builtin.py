"""A handful of prompts of our own, for runs without any file."""

from __future__ import annotations

MATH = (
    "A baker fills 7 trays with 12 rolls each and sells 58 of them before noon. How many rolls are "
    "left? Explain each step and give the number at the end.",
    "Lena cycles 18 km in the first hour and 3 km less in every hour after it. How far has she "
    "come after four hours? Reason step by step.",
    "A tank holds 240 litres. One pipe fills it in 8 hours, a second one in 12 hours. How long do "
    "both need together? Show your work.",
    "Three friends share 96 stickers so that the second gets twice as many as the first, and the "
    "third as many as the first two together. How many does each get?",
)
CODE = (
    "Write a Python function `running_max(values)` that returns a list whose entry i is the "
    "largest of the first i + 1 values. Add a docstring.",
    "Write a Python function `count_words(text)` that returns a dictionary from each word, in "
    "lower case, to how often it occurs. Ignore punctuation.",
    "Write a Python class `Stack` with the methods push, pop, peek and is_empty. Popping an empty "
    "stack must raise an IndexError with a clear message.",
    "Write a Python function that reads a CSV file with the columns name and score and returns the "
    "names sorted by score, best first.",
)
CHAT = (
    "What should I look at when I buy a used bicycle?",
    "Write a short, friendly message to a neighbour whose music is too loud at night.",
    "Explain to a ten-year-old why the moon seems to change its shape.",
    "Suggest a weekend in a small town by the sea, for two people who like to walk.",
)
SETS = {"builtin-math": MATH, "builtin-code": CODE, "builtin-chat": CHAT}
