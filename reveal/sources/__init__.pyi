# ruff: noqa: I001
# fmt: off
from .records import Question as Question
from .registry import Items as Items, Questions as Questions
from .skips import Skips as Skips
