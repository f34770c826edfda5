"""Transforms of torchvision, kornia and albumentations, and functions, as deformations."""
