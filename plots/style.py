"""One look for every figure: the colour-blind safe palette of Okabe and Ito, markers as a second cue, PDF and PNG."""
import os

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the back end is chosen first)

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
CYCLE = [BLUE, ORANGE, GREEN, RED, PURPLE, SKY, BLACK]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]

plt.rcParams.update({
    "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False,
    "axes.prop_cycle": matplotlib.cycler(color=CYCLE), "grid.color": "#DDDDDD", "figure.figsize": (5.0, 3.2),
    "figure.constrained_layout.use": True, "font.size": 9, "legend.frameon": False, "lines.markersize": 4,
    "pdf.fonttype": 42, "savefig.dpi": 200,
})


def save(figure, stem):
    """Writes STEM.pdf and STEM.png; the same data give the same bytes."""
    os.makedirs(os.path.dirname(os.path.abspath(stem)), exist_ok=True)
    figure.savefig(stem + ".pdf", metadata={"CreationDate": None})
    figure.savefig(stem + ".png", metadata={"Software": None})
    plt.close(figure)
    print(f"{stem}.pdf {stem}.png")
