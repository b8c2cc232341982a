// The number formats and the reductions of NCCL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace stub {

enum DataType { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, NUM_TYPES };
enum Reduction { SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE, NUM_REDUCTIONS };

size_t size_of(DataType type);

// to[i] = the reduction of source[i] over the sources. float16 and bfloat16 are reduced in float32 and rounded once.
void reduce(Reduction reduction, DataType type, const std::vector<const void *> &sources, void *to, size_t count);

// values[i] *= factor, where the factor is a number of the same type.
void multiply(DataType type, void *values, size_t count, const void *factor);

}  // namespace stub
