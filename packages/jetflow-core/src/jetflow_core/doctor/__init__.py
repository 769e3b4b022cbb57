"""Whether a head drafts what it was trained to: "ok", "unclear", "weak head" or "wiring fault".

A head that is wired wrongly still gives correct text, only slower, so no test of the output can
see it. Two kinds of evidence decide. A wrong wiring on purpose (taps one layer off, features one
row off, ...) that agrees better with the target than the wiring in use proves a fault, because
nothing but the right wiring can be what the head was trained with. And agreement far below what
was stored at training time says that something changed since. A head that is wired as trained and
agrees little is merely weak; one that agrees little and does not say what it should reach may be
either, and is called so.
"""
