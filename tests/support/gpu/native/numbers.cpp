#include "numbers.h"

#include <algorithm>
#include <cmath>

namespace {

uint32_t bits_of(float number) {
  uint32_t bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}

float from_bits(uint32_t bits) {
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}

// A number format is a type of its own, with `Wide` for arithmetic.
template <class Number>
struct Plain {
  using Stored = Number;
  using Wide = Number;
  static Wide widen(Stored number) { return number; }
  static Stored narrow(Wide number) { return number; }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Wide = float;
  static float widen(uint16_t number) { return from_bits(uint32_t(number) << 16); }
  static uint16_t narrow(float number) {
    if (std::isnan(number)) return 0x7fc0;
    uint32_t bits = bits_of(number);
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to the nearest, ties to even
  }
};

struct Float16 {
  using Stored = uint16_t;
  using Wide = float;
  static constexpr int BIAS = 15, NUM_BITS = 10, MAX_EXPONENT = 31;

  static float widen(uint16_t number) {
    int exponent = (number >> NUM_BITS) & MAX_EXPONENT, fraction = number & 0x3ff;
    float sign = number & 0x8000 ? -1.0f : 1.0f;
    if (exponent == MAX_EXPONENT) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * std::ldexp(float(fraction), 1 - BIAS - NUM_BITS);
    return sign * std::ldexp(float(fraction | 0x400), exponent - BIAS - NUM_BITS);
  }

  static uint16_t narrow(float number) {
    uint16_t sign = std::signbit(number) ? 0x8000 : 0;
    if (std::isnan(number)) return 0x7e00;
    float size = std::fabs(number);
    if (size >= 65520.0f) return sign | 0x7c00;  // rounds to infinity
    int exponent = std::max(size > 0 ? std::ilogb(size) : 1 - BIAS, 1 - BIAS);
    auto units = uint32_t(std::nearbyint(std::ldexp(size, NUM_BITS - exponent)));  // ties to even
    return sign | uint16_t(units + (uint32_t(exponent + BIAS - 1) << NUM_BITS));
  }
};

template <class Wide>
Wide combined(stub::Reduction reduction, Wide one, Wide other) {
  switch (reduction) {
    case stub::PRODUCT:
      return one * other;
    case stub::MAXIMUM:
      return std::max(one, other);
    case stub::MINIMUM:
      return std::min(one, other);
    default:
      return one + other;
  }
}

template <class Format>
void reduce_as(stub::Reduction reduction, const std::vector<const void *> &sources, void *to, size_t count) {
  using Stored = typename Format::Stored;
  using Wide = typename Format::Wide;
  for (size_t i = 0; i < count; i++) {
    Wide result = Format::widen(((const Stored *)sources[0])[i]);
    for (size_t n = 1; n < sources.size(); n++)
      result = combined<Wide>(reduction, result, Format::widen(((const Stored *)sources[n])[i]));
    if (reduction == stub::AVERAGE) result = result / Wide(sources.size());
    ((Stored *)to)[i] = Format::narrow(result);
  }
}

template <class Format>
void multiply_as(void *values, size_t count, const void *factor) {
  using Stored = typename Format::Stored;
  auto by = Format::widen(*(const Stored *)factor);
  for (size_t i = 0; i < count; i++) {
    Stored &value = ((Stored *)values)[i];
    value = Format::narrow(Format::widen(value) * by);
  }
}

// Call `call` with the format of a type.
template <class Call>
void with_format(stub::DataType type, Call call) {
  switch (type) {
    case stub::INT8:
      return call(Plain<int8_t>());
    case stub::UINT8:
      return call(Plain<uint8_t>());
    case stub::INT32:
      return call(Plain<int32_t>());
    case stub::UINT32:
      return call(Plain<uint32_t>());
    case stub::INT64:
      return call(Plain<int64_t>());
    case stub::UINT64:
      return call(Plain<uint64_t>());
    case stub::FLOAT16:
      return call(Float16());
    case stub::FLOAT32:
      return call(Plain<float>());
    case stub::FLOAT64:
      return call(Plain<double>());
    case stub::BFLOAT16:
      return call(BFloat16());
    default:
      return;
  }
}

}  // namespace

size_t stub::size_of(DataType type) {
  size_t size = 1;
  with_format(type, [&](auto format) { size = sizeof(typename decltype(format)::Stored); });
  return size;
}

void stub::reduce(Reduction reduction, DataType type, const std::vector<const void *> &sources, void *to,
                  size_t count) {
  with_format(type, [&](auto format) { reduce_as<decltype(format)>(reduction, sources, to, count); });
}

void stub::multiply(DataType type, void *values, size_t count, const void *factor) {
  with_format(type, [&](auto format) { multiply_as<decltype(format)>(values, count, factor); });
}
