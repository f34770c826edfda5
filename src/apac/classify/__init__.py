"""Classification: Classifier -> PassScheduler -> passes -> deformation -> network -> Scores -> rule -> Decision.

Each file holds one step: `classifier.py` is the entry, `scheduler.py` chooses which images get which passes next,
`passes.py` runs them (`pass_parameters.py` samples their parameters, `network_outputs.py` reads the network's outputs),
`scores.py` sums them, `rules/` says when to stop, and `decision.py` holds the result. `combine.py` is the choice
between product and sum, `margin.py` the standard error of a margin, and `choice.py` what `apac.tune` has chosen.
`session.py` decides images that join and leave at any time, for the server, and `shared_batch.py` finds how many of
them share a batch. A new rule is a new file in `rules/`.

The scheduler works on groups of images. A group runs in rounds, the passes that a rule schedules at once; after every
16 passes of a round the rule is updated and the decided images leave. A round is divided into blocks, some images in
some passes, which worker threads run in device batches, the images of one call of the network.
"""
