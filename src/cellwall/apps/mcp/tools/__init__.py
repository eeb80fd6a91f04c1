"""The tools that a model is offered: what each takes, does and returns; no protocol."""
