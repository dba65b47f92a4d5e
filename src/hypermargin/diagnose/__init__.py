"""What is this loss, and what is wrong with it? Somebody's criterion measured as a black box.

criterion   a criterion as a function of features, class rows and labels; forms finds out how it is called
angles      the measurements: the target's logit at every angle, and what rivals count as
sides       what lengths do; edges where losses break; habits how it behaves as a program
recognise   which margin of the family it is; laws what is said of the curves; slips what explains a ψ that is none
hard        rules for rivals that depend on the target, and circle loss
outer       what is done with the cross-entropy: a weight, a focal loss, smoothed labels
mistakes    a softmax too many or too few, a wrong axis, rows that know each other
replacing   the line that replaces it, and the proof
examination, chance, outputs   the order of it: what is measured, and what is concluded
doctor      `diagnose`: all of it; diagnosis is what it returns

settings, logs   the same care for a run's settings before it trains, and for what its log says
report, pictures   text, JSON and one HTML page of it; loading, worker  a criterion by its name, apart
"""

from hypermargin.diagnose.diagnosis import Diagnosis
from hypermargin.diagnose.doctor import diagnose
from hypermargin.diagnose.findings import LEVELS, Finding, reaches
from hypermargin.diagnose.forms import NotUnderstood

__all__ = ["LEVELS", "Diagnosis", "Finding", "NotUnderstood", "diagnose", "reaches"]
