"""Lines of text in the detector's map become boxes in reading order."""

from __future__ import annotations

import numpy as np

from ccs_workers.engines.vision.boxes import Box, find_boxes, in_rows


def test_boxes_keep_their_rim_and_stand_in_rows():
    probabilities = np.zeros((100, 200), np.float32)
    probabilities[20:30, 110:180] = 0.9
    probabilities[22:32, 20:80] = 0.9
    probabilities[60:70, 20:80] = 0.9
    probabilities[80:90, 20:80] = 0.4
    probabilities[50:52, 150:152] = 0.9

    rows = in_rows(find_boxes(probabilities, 400, 200))
    assert [len(row) for row in rows] == [2, 1]
    assert rows[0][0].left < rows[0][1].left
    rim = 10 * 60 * 1.6 / (2 * 70)
    below = rows[1][0]
    assert below == Box(left=2 * (20 - rim), top=2 * (60 - rim), right=2 * (80 + rim), bottom=2 * (70 + rim))
