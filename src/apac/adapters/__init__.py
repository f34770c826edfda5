"""Transforms of other libraries as deformations, with the promises that a deformation makes."""
