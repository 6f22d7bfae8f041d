#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM on a checkpoint of fp8's, in three lines.

  fp8 quantize MODEL --dynamic -o MODEL-fp8
  python tools/examples/vllm_generate.py MODEL-fp8 "In the beginning"
"""

import sys

from vllm import LLM, SamplingParams

llm = LLM(model=sys.argv[1])
answers = llm.generate(sys.argv[2:], SamplingParams(max_tokens=32, temperature=0))
print("\n".join(answer.prompt + answer.outputs[0].text for answer in answers))
