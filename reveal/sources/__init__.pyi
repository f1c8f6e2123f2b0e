# ruff: noqa: I001
# fmt: off
from .records import Question as Question, Skips as Skips
from .registry import Items as Items, Questions as Questions
