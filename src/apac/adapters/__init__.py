"""Other libraries: their transforms as deformations, and APAC as a scikit-learn estimator."""
