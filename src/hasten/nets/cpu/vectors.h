// What the functions share: some float32 values as one vector, read from and written to float32 or bfloat16 memory; and
// whether all threads have their memory.

#pragma once

#include <cstdint>
#include <cstring>

namespace {

#ifdef __AVX512F__
constexpr int64_t kWidth = 16; // values of a Vec
#else
constexpr int64_t kWidth = 8;
#endif
typedef float Vec __attribute__((vector_size(4 * kWidth)));
typedef uint32_t Bits __attribute__((vector_size(4 * kWidth)));
typedef uint16_t Halves __attribute__((vector_size(2 * kWidth)));
typedef int32_t Ints __attribute__((vector_size(4 * kWidth)));

struct BFloat16 {
    uint16_t bits;
};

inline Vec load(const float *from) {
    Vec values;
    memcpy(&values, from, sizeof values);
    return values;
}
inline Vec load(const BFloat16 *from) {
    Halves halves;
    memcpy(&halves, from, sizeof halves);
    return reinterpret_cast<Vec>(__builtin_convertvector(halves, Bits) << 16);
}
inline void store(float *to, Vec values) { memcpy(to, &values, sizeof values); }
inline void store(BFloat16 *to, Vec values) {
    const Bits bits = reinterpret_cast<Bits>(values);
    const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16; // to the nearest, ties to even
    const Halves halves = __builtin_convertvector(values == values ? rounded : rounded * 0 + 0x7fc0, Halves);
    memcpy(to, &halves, sizeof halves);
}
template <class T> inline Vec load(const T *from, int64_t count) {
    if (count == kWidth) return load(from);
    T padded[kWidth] = {};
    memcpy(padded, from, count * sizeof(T));
    return load(padded);
}
template <class T> inline void store(T *to, Vec values, int64_t count) {
    if (count == kWidth) return store(to, values);
    T padded[kWidth];
    store(padded, values);
    memcpy(to, padded, count * sizeof(T));
}

inline float single(float value) { return value; }
inline float single(BFloat16 value) {
    const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}
template <class T> inline T rounded(float value);
template <> inline float rounded<float>(float value) { return value; }
template <> inline BFloat16 rounded<BFloat16>(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return {static_cast<uint16_t>(value == value ? (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 : 0x7fc0)};
}
inline float total(Vec values) {
    float sum = 0;
    for (int64_t lane = 0; lane < kWidth; ++lane) sum += values[lane];
    return sum;
}

inline Vec larger(Vec one, Vec other) { return one > other ? one : other; }

// e^x to 1e-7 of it, 0 below -87; Cephes' polynomial.
inline Vec exponential(Vec x) {
    const Vec bounded = x < -87.0f ? Vec{} - 87.0f : x > 88.0f ? Vec{} + 88.0f : x;
    const Vec halves = bounded * 1.44269504f + 12582912.0f; // 1.5 * 2^23 rounds to a whole number
    const Vec whole = halves - 12582912.0f;
    const Vec rest = bounded - whole * 0.693359375f + whole * 2.12194440e-4f;
    Vec result = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    result = result * rest + 8.3334519073e-3f;
    result = result * rest + 4.1665795894e-2f;
    result = result * rest + 1.6666665459e-1f;
    result = result * rest + 5.0000001201e-1f;
    result = result * rest * rest + rest + 1.0f;
    const Ints power = (__builtin_convertvector(whole, Ints) + 127) << 23;
    return x < -87.0f ? Vec{} : result * reinterpret_cast<Vec>(power);
}

// The natural logarithm of a normal, positive x, to 1e-7; Cephes' polynomial.
inline Vec logarithm(Vec x) {
    const Ints bits = reinterpret_cast<Ints>(x);
    Vec exponent = __builtin_convertvector((bits >> 23) - 126, Vec);
    Vec part = reinterpret_cast<Vec>((bits & 0x7fffff) | 0x3f000000); // 0.5 to 1
    const Ints small = part < 0.707106781f;
    exponent = small ? exponent - 1.0f : exponent;
    part = (small ? part + part : part) - 1.0f;
    const Vec square = part * part;
    Vec result = part * 7.0376836292e-2f - 1.1514610310e-1f;
    result = result * part + 1.1676998740e-1f;
    result = result * part - 1.2420140846e-1f;
    result = result * part + 1.4249322787e-1f;
    result = result * part - 1.6668057665e-1f;
    result = result * part + 2.0000714765e-1f;
    result = result * part - 2.4999993993e-1f;
    result = result * part + 3.3333331174e-1f;
    result = result * part * square + exponent * -2.12194440e-4f - square * 0.5f;
    return part + result + exponent * 0.693359375f;
}

// For all threads of a parallel region: whether each has its memory. Else `failed`, which they share, is 1.
inline bool all_have(bool memory, int &failed) {
    if (!memory) {
#pragma omp atomic write
        failed = 1;
    }
#pragma omp barrier
    return !failed;
}

} // namespace
