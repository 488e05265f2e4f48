#pragma once
// Weights between the file's rows and the packed groups of kernel_table.h. Lossless: UnpackRow gives the values DequantizeRow gives.
#include <cstdint>

#include "kernels/cpu/kernel_table.h"
#include "kernels/dtype.h"

namespace holdfast::kernels {

PackedLayout PackedLayoutOf(DType type);
int64_t PackedGroupBytes(DType type, int64_t in);           // one group of 16 rows
inline int64_t PackedGroups(int64_t out) { return (out + kGroupRows - 1) / kGroupRows; }

void PackWeights(DType type, int64_t out, int64_t in, const std::byte* src, std::byte* dst);
void UnpackRow(DType type, int64_t in, const std::byte* packed, int64_t row, float* values);

// GemmArgs::table and ::zero of a type.
const uint8_t* CodeTable(DType type);
int32_t CodeZero(DType type);

}  // namespace holdfast::kernels
