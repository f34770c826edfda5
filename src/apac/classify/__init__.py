"""Classification: Classifier -> PassScheduler -> passes -> deformation -> network -> Scores -> rule -> Decision.

Each file holds one step: `classifier.py` is the entry, `scheduler.py` chooses which images get which passes next,
`passes.py` runs them (`pass_parameters.py` samples their parameters, `network_outputs.py` reads the network's outputs),
`scores.py` sums them, `rules/` says when to stop, and `decision.py` holds the result. `combine.py` is the choice
between product and sum, `margin.py` the standard error of a margin. A new rule is a new file in `rules/`.
"""
