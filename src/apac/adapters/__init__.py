"""Adapters: transforms of other libraries as deformations, and APAC as a scikit-learn estimator."""
