"""What is said to a network before a question, and of a picture that nothing is asked about.

A network answers what it was trained to be asked: a prompt is a part of its weights as its vocabulary is.
"""

from __future__ import annotations

ASK, DESCRIBE = "Question: {}", "Describe the picture:"


def asked(question: str, prompt: str = ASK) -> str:
    """The text that a query begins with; an empty question asks for a description where there is a prompt at all."""
    if not question and prompt == ASK:
        return DESCRIBE
    return prompt.format(question)
