"""Sets of multiple-choice questions with the lengths of published ones, as random token ids from a seed: how many tokens
are asked, and which beginnings are shared, is real; what they say is not.

Numbers of questions are the published test sets'. Lengths are means in tokens, measured on the subjects of MMLU and on
the questions of ARC and PIQA that are at hand (SmolLM2's tokenizer), and estimated from the texts' characters for the
others; a length varies around its mean by a third.
"""

import random

# Subject: (test questions, mean tokens of a question with its four choices)
MMLU = {
    "abstract_algebra": (100, 66), "anatomy": (135, 60), "astronomy": (152, 72), "business_ethics": (100, 88),
    "clinical_knowledge": (265, 60), "college_biology": (144, 80), "college_chemistry": (100, 82),
    "college_computer_science": (100, 125), "college_mathematics": (100, 85), "college_medicine": (173, 110),
    "college_physics": (102, 88), "computer_security": (100, 70), "conceptual_physics": (235, 52),
    "econometrics": (114, 103), "electrical_engineering": (145, 56), "elementary_mathematics": (378, 70),
    "formal_logic": (126, 120), "global_facts": (100, 55), "high_school_biology": (310, 85),
    "high_school_chemistry": (203, 86), "high_school_computer_science": (100, 115),
    "high_school_european_history": (165, 390), "high_school_geography": (198, 54),
    "high_school_government_and_politics": (193, 76), "high_school_macroeconomics": (390, 68),
    "high_school_mathematics": (270, 88), "high_school_microeconomics": (238, 70), "high_school_physics": (151, 104),
    "high_school_psychology": (545, 68), "high_school_statistics": (216, 118), "high_school_us_history": (204, 312),
    "high_school_world_history": (237, 350), "human_aging": (223, 52), "human_sexuality": (131, 57),
    "international_law": (121, 96), "jurisprudence": (108, 70), "logical_fallacies": (163, 66),
    "machine_learning": (112, 82), "management": (103, 48), "marketing": (234, 62), "medical_genetics": (100, 56),
    "miscellaneous": (783, 46), "moral_disputes": (346, 78), "moral_scenarios": (895, 105), "nutrition": (306, 72),
    "philosophy": (311, 62), "prehistory": (324, 72), "professional_accounting": (282, 112),
    "professional_law": (1534, 290), "professional_medicine": (272, 215), "professional_psychology": (612, 84),
    "public_relations": (110, 60), "security_studies": (245, 140), "sociology": (201, 68), "us_foreign_policy": (100, 66),
    "virology": (166, 54), "world_religions": (171, 46)}
VOCAB = 30000  # of the ids that are drawn


class Drawn:
    def __init__(self, seed):
        self.rng = random.Random(seed)

    def tokens(self, mean):
        """A text of about so many tokens."""
        return self.exactly(max(2, round(self.rng.gauss(mean, mean / 3))))

    def exactly(self, n):
        return [self.rng.randrange(VOCAB) for _ in range(n)]

    def some(self, n, fraction):
        return max(1, round(n * fraction))


def mmlu(d, fraction):
    """5-shot, the same examples for all questions of a subject; answers of one token."""
    letters = d.exactly(4)
    for n, mean in MMLU.values():
        head = d.exactly(14) + [t for _ in range(5) for t in d.tokens(mean + 2)]
        for _ in range(d.some(n, fraction)):
            context = head + d.tokens(mean)
            yield from ({"context": context, "continuation": [letter]} for letter in letters)


def own_examples(d, n, shots, example, question, choice):
    """Examples are drawn for each question, as lm-eval does where a task does not fix them."""
    for _ in range(n):
        context = [t for _ in range(shots) for t in d.tokens(example)] + d.tokens(question)
        yield from ({"context": context, "continuation": d.tokens(choice)} for _ in range(4))


def hellaswag(d, fraction):
    yield from own_examples(d, d.some(10042, fraction), 10, 88, 60, 28)


def arc(d, fraction):
    """ARC-Challenge, 25-shot."""
    yield from own_examples(d, d.some(1172, fraction), 25, 36, 30, 5)


def zero_shot(d, fraction):
    """Four choices share the question alone; as many questions as ARC-Easy has."""
    yield from own_examples(d, d.some(2376, fraction), 0, 0, 35, 8)


def nothing(d, fraction):
    """Windows that share nothing; all of them are half a million tokens."""
    yield from ({"tokens": d.exactly(2049)} for _ in range(d.some(256, fraction)))


SETS = {"mmlu": mmlu, "hellaswag": hellaswag, "arc": arc, "zero-shot": zero_shot, "nothing": nothing}


def items_of(name, seed, fraction):
    return list(SETS[name](Drawn(seed), fraction))
