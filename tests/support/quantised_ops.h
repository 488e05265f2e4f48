#pragma once
// The reference backend with one difference: activations that meet a quantised weight are first rounded to int8 per 32 values, as fast
// backends do. With it, "the int8 activations explain the difference" is a claim a test can check.
#include <memory>

#include "kernels/ops.h"

namespace holdfast::test {

std::unique_ptr<kernels::Ops> MakeQuantisedActivationOps();

}  // namespace holdfast::test
