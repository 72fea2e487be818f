"""Reads folders of pretrained text encoders, in the layout of the Hugging Face hub."""
