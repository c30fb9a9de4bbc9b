// The arithmetic of a decoder layer, on spans of f32, in two implementations: reference/ (plain loops, f64
// sums) and cpu/ (an instruction set each).
#pragma once

#include "grace/kernels/attention.h"
#include "grace/kernels/gate.h"
#include "grace/kernels/matmul.h"
#include "grace/kernels/norm.h"
#include "grace/kernels/rope.h"
