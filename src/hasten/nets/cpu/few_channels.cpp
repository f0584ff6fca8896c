// Convolutions to and between a few channels on a CPU, in channels-last: a network's last layers, which have the image's
// resolution and a channel for each class. Libraries fill registers of 16 channels; here neighbouring voxels fill them.
// All sums are float32, those over an image float64 in the order of its planes, whatever the number of threads.

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "vectors.h"

extern "C" struct FewChannels {
    int64_t samples, inputs, outputs; // at most kMost outputs
    int64_t depth, height, width;     // of the input
    int64_t taps;                     // of the filter along the depth: 3, or 1 for an image of two dimensions
    int32_t bfloat16, threads;
};

namespace {

constexpr int64_t kMost = 4;
#ifdef __AVX512F__
constexpr int64_t kRows = 4; // of an image, whose sums are in registers together
#else
constexpr int64_t kRows = 2;
#endif
constexpr int64_t kBlock = 4; // voxels of a transposed convolution whose sums are in registers together

// Writes values of an image, from `start` on and `step` apart, as float32.
template <class T> void copy_in(const T *image, int64_t start, int64_t count, int64_t step, float *to) {
    for (int64_t k = 0; k < count; ++k) to[k] = single(image[start + k * step]);
}
void read(const FewChannels &size, const void *image, int64_t start, int64_t count, int64_t step, float *to) {
    if (size.bfloat16)
        copy_in(static_cast<const BFloat16 *>(image), start, count, step, to);
    else
        copy_in(static_cast<const float *>(image), start, count, step, to);
}
template <class T> void copy_out(const float *from, int64_t count, T *image, int64_t start, int64_t step) {
    for (int64_t k = 0; k < count; ++k) image[start + k * step] = rounded<T>(from[k]);
}
void write(const FewChannels &size, const float *from, int64_t count, void *image, int64_t start, int64_t step) {
    if (size.bfloat16)
        copy_out(from, count, static_cast<BFloat16 *>(image), start, step);
    else
        copy_out(from, count, static_cast<float *>(image), start, step);
}

inline int64_t rounded_up(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

// Keeps a value in a register: else the compiler reads it from memory again for each use.
inline void keep([[maybe_unused]] Vec &value) {
#ifdef __AVX__
    asm("" : "+x"(value));
#endif
}

// Planes of an image as float32, channel by channel: the last few that were asked for. Zeros surround each plane.
class Planes {
  public:
    // border: zeros before the first value of a row
    Planes(const FewChannels &size, const void *image, int64_t channels, int64_t kept, int64_t border)
        : row(rounded_up(size.width + 2, kWidth) + kWidth), size_(size), image_(image), channels_(channels),
          kept_(kept), border_(border), values_(channels * (size.height + 2 + kRows) * row) {
        memory_ = static_cast<float *>(aligned_alloc(64, rounded_up(values_ * (kept + 1) * sizeof(float), 64)));
        if (memory_) memset(memory_, 0, values_ * (kept + 1) * sizeof(float));
        for (int64_t slot = 0; slot < kept; ++slot) loaded_[slot] = -1;
    }
    ~Planes() { free(memory_); }
    explicit operator bool() const { return memory_; }

    const float *at(int64_t sample, int64_t z) { // zeros outside the image
        if (z < 0 || z >= size_.depth) return memory_ + values_ * kept_;
        const int64_t number = sample * size_.depth + z, slot = number % kept_;
        float *to = memory_ + values_ * slot;
        if (loaded_[slot] == number) return to;
        loaded_[slot] = number;
        for (int64_t y = 0; y < size_.height; ++y)
            for (int64_t c = 0; c < channels_; ++c)
                read(size_, image_, (number * size_.height + y) * size_.width * channels_ + c, size_.width, channels_,
                     to + start(c, y + 1) + border_);
        return to;
    }
    // Of a row; row 0 is the zeros above the first.
    int64_t start(int64_t channel, int64_t y) const { return (channel * (size_.height + 2 + kRows) + y) * row; }

    const int64_t row;

  private:
    const FewChannels &size_;
    const void *image_;
    int64_t channels_, kept_, border_, values_, loaded_[3];
    float *memory_;
};

// Adds what an input's rows from y on give kRows rows of K outputs. factors: (3, 3, K), along x, y and the outputs
template <int K> inline void add(const float *from, int64_t row, const float *factors, Vec (&sums)[kRows][K]) {
    for (int64_t dx = 0; dx < 3; ++dx) {
        Vec values[kRows + 2];
        for (int64_t y = 0; y < kRows + 2; ++y) keep(values[y] = load(from + y * row + dx));
        for (int64_t dy = 0; dy < 3; ++dy)
            for (int k = 0; k < K; ++k)
                for (int64_t y = 0; y < kRows; ++y) sums[y][k] += values[y + dy] * *(factors + (dx * 3 + dy) * K + k);
    }
}

// weight: (inputs, taps, 3, 3, K), along depth, x and y
template <int K>
int convolve(const FewChannels &size, const void *image, const float *weight, const float *bias, void *output) {
    int failed = 0;
#pragma omp parallel num_threads(size.threads)
    {
        Planes planes(size, image, size.inputs, size.taps, 1);
        float *lines = static_cast<float *>(calloc(kRows * K * planes.row, sizeof(float)));
        if (all_have(planes && lines, failed)) {
#pragma omp for schedule(static)
            for (int64_t task = 0; task < size.samples * size.depth; ++task) {
                const float *near[3];
                for (int64_t dz = 0; dz < size.taps; ++dz)
                    near[dz] = planes.at(task / size.depth, task % size.depth + dz - size.taps / 2);
                for (int64_t y = 0; y < size.height; y += kRows) {
                    for (int64_t x = 0; x < size.width; x += kWidth) {
                        Vec sums[kRows][K];
                        for (int64_t j = 0; j < kRows; ++j)
                            for (int k = 0; k < K; ++k) sums[j][k] = Vec{} + (bias ? bias[k] : 0.0f);
                        for (int64_t c = 0; c < size.inputs; ++c)
                            for (int64_t dz = 0; dz < size.taps; ++dz)
                                add<K>(near[dz] + planes.start(c, y) + x, planes.row,
                                       weight + (c * size.taps + dz) * 9 * K, sums);
                        for (int64_t j = 0; j < kRows; ++j)
                            for (int k = 0; k < K; ++k) store(lines + (j * K + k) * planes.row + x, sums[j][k]);
                    }
                    for (int64_t j = 0; j < kRows && y + j < size.height; ++j)
                        for (int k = 0; k < K; ++k)
                            write(size, lines + (j * K + k) * planes.row, size.width, output,
                                  (task * size.height + y + j) * size.width * K + k, K);
                }
            }
        }
        free(lines);
    }
    return failed;
}

// Gradients of the filter, (inputs, taps, 3, 3, K), and of the bias, (K), from that of the output.
template <int K> int to_filter(const FewChannels &size, const void *gradient, const void *image, float *to_weight, float *to_bias) {
    const int64_t all = size.samples * size.depth, count = size.inputs * size.taps * 9 * K;
    float *parts = static_cast<float *>(malloc(sizeof(float) * all * (count + K)));
    if (!parts) return 1;
    int failed = 0;
#pragma omp parallel num_threads(size.threads)
    {
        Planes planes(size, image, size.inputs, size.taps, 1), gradients(size, gradient, K, 1, 0);
        if (all_have(planes && gradients, failed)) {
#pragma omp for schedule(static)
            for (int64_t task = 0; task < all; ++task) {
                const int64_t sample = task / size.depth, z = task % size.depth;
                const float *upstream = gradients.at(sample, z);
                float *part = parts + task * (count + K);
                for (int64_t c = 0; c < size.inputs; ++c)
                    for (int64_t dz = 0; dz < size.taps; ++dz)
                        for (int64_t dy = 0; dy < 3; ++dy) {
                            const float *plane = planes.at(sample, z + dz - size.taps / 2);
                            Vec sums[3][K] = {};
                            for (int64_t y = 0; y < size.height; ++y) {
                                const float *from = plane + planes.start(c, y + dy);
                                for (int64_t x = 0; x < size.width; x += kWidth) {
                                    Vec values[3];
                                    for (int dx = 0; dx < 3; ++dx) keep(values[dx] = load(from + x + dx));
                                    for (int k = 0; k < K; ++k) {
                                        Vec along = load(upstream + gradients.start(k, y + 1) + x);
                                        keep(along);
                                        for (int dx = 0; dx < 3; ++dx) sums[dx][k] += along * values[dx];
                                    }
                                }
                            }
                            for (int dx = 0; dx < 3; ++dx)
                                for (int k = 0; k < K; ++k) *part++ = total(sums[dx][k]);
                        }
                for (int k = 0; k < K; ++k) {
                    Vec sum = {};
                    for (int64_t y = 0; y < size.height; ++y)
                        for (int64_t x = 0; x < size.width; x += kWidth)
                            sum += load(upstream + gradients.start(k, y + 1) + x);
                    *part++ = total(sum);
                }
            }
        }
    }
    for (int64_t k = 0; k < count + K; ++k) {
        double sum = 0;
        for (int64_t task = 0; task < all; ++task) sum += parts[task * (count + K) + k];
        (k < count ? to_weight[k] : to_bias[k - count]) = static_cast<float>(sum);
    }
    free(parts);
    return failed;
}

// Adds the products of kBlock voxels and their filters to three rows of the output, `length` apart. lanes: as in `transpose`
template <int K>
inline void add_products(const float *voxels, int64_t inputs, const float *table, float *to, int64_t length) {
    constexpr int64_t vectors = (9 * K + kWidth - 1) / kWidth, lanes = vectors * kWidth;
    Vec sums[kBlock][vectors] = {};
    for (int64_t c = 0; c < inputs; ++c)
        for (int64_t v = 0; v < vectors; ++v) {
            Vec factor = load(table + c * lanes + v * kWidth);
            keep(factor);
            for (int64_t j = 0; j < kBlock; ++j) sums[j][v] += factor * voxels[j * inputs + c];
        }
    for (int64_t j = 0; j < kBlock; ++j) {
        float products[lanes];
        for (int64_t v = 0; v < vectors; ++v) store(products + v * kWidth, sums[j][v]);
        for (int64_t dy = 0; dy < 3; ++dy)
            for (int64_t k = 0; k < 3 * K; ++k) to[dy * length + 2 * j * K + k] += products[dy * 3 * K + k];
    }
}

// A transposed convolution, which doubles each side. weight: (inputs, K, taps, 3, 3)
//
// Each voxel of the input is multiplied with the filters of three rows at once, and the products are added to those rows.
template <int K>
int transpose(const FewChannels &size, const void *image, const float *weight, const float *bias, void *output) {
    constexpr int64_t vectors = (9 * K + kWidth - 1) / kWidth, lanes = vectors * kWidth;
    const int64_t inputs = size.inputs, width = rounded_up(size.width, kBlock), filters = size.taps * inputs * lanes;
    const int64_t depth = size.taps == 1 ? size.depth : 2 * size.depth, length = (2 * width + 1) * K;
    float *table = static_cast<float *>(aligned_alloc(64, rounded_up(filters * sizeof(float), 64)));
    if (!table) return 1;
    memset(table, 0, filters * sizeof(float)); // (taps, inputs, lanes): lanes are (3, 3, K) and zeros
    for (int64_t c = 0; c < inputs; ++c)
        for (int64_t k = 0; k < K; ++k)
            for (int64_t tap = 0; tap < size.taps * 9; ++tap)
                table[(tap / 9 * inputs + c) * lanes + tap % 9 * K + k] = weight[(c * K + k) * size.taps * 9 + tap];
    int failed = 0;
#pragma omp parallel num_threads(size.threads)
    {
        float *row = static_cast<float *>(calloc(width * inputs, sizeof(float)));
        float *lines = static_cast<float *>(malloc((2 * size.height + 1) * length * sizeof(float)));
        if (all_have(row && lines, failed)) {
#pragma omp for schedule(static)
            for (int64_t task = 0; task < size.samples * depth; ++task) {
                for (int64_t k = 0; k < (2 * size.height + 1) * length; ++k) lines[k] = bias ? bias[k % K] : 0.0f;
                const int64_t z = task % depth;
                for (int64_t tap = 0; tap < size.taps; ++tap) {
                    const int64_t twice = z + 1 - tap, from = size.taps == 1 ? z : twice / 2; // twice the input's place
                    if (size.taps == 3 && (twice % 2 || from >= size.depth)) continue;
                    for (int64_t y = 0; y < size.height; ++y) {
                        const int64_t start = (task / depth * size.depth + from) * size.height + y;
                        read(size, image, start * size.width * inputs, size.width * inputs, 1, row);
                        for (int64_t x = 0; x < size.width; x += kBlock)
                            add_products<K>(row + x * inputs, inputs, table + tap * inputs * lanes,
                                            lines + 2 * y * length + 2 * x * K, length);
                    }
                }
                for (int64_t y = 0; y < 2 * size.height; ++y)
                    write(size, lines + (y + 1) * length + K, 2 * size.width * K, output,
                          (task * 2 * size.height + y) * 2 * size.width * K, 1);
            }
        }
        free(row);
        free(lines);
    }
    free(table);
    return failed;
}

} // namespace

// Calls `function` with the number of outputs as its type's argument.
#define BY_OUTPUTS(function, ...)                                                                                      \
    switch (size->outputs) {                                                                                           \
    case 1: return function<1>(__VA_ARGS__);                                                                           \
    case 2: return function<2>(__VA_ARGS__);                                                                           \
    case 3: return function<3>(__VA_ARGS__);                                                                           \
    default: return function<kMost>(__VA_ARGS__);                                                                      \
    }

// Return 1 where memory runs out. The bias may be null.
extern "C" int few_conv(const FewChannels *size, const void *image, const float *weight, const float *bias, void *output) {
    BY_OUTPUTS(convolve, *size, image, weight, bias, output)
}

extern "C" int few_conv_filter(const FewChannels *size, const void *gradient, const void *image, float *weight, float *bias) {
    BY_OUTPUTS(to_filter, *size, gradient, image, weight, bias)
}

extern "C" int few_transposed(const FewChannels *size, const void *image, const float *weight, const float *bias, void *output) {
    BY_OUTPUTS(transpose, *size, image, weight, bias, output)
}
