"""Charts of models: colours and marks, places of labels, and drawings with matplotlib. report.html takes its colours and marks
from here, too."""
