// Group norm and activation of an image, forward and backward, on a CPU.
//
// An image is `outer` blocks of `voxels` rows of `inner` values: (B, voxels, C) in channels-last, (B * C, voxels, 1)
// else. A block is cut into pieces of whole rows, whose sums are combined in float64 in the order of the pieces, so that
// the result does not depend on the number of threads. Within a piece, `repeat` rows are read as one vector of `lanes`
// values, so that a few channels fill a register too.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <omp.h>

namespace {

constexpr int64_t kPiece = 8192;     // values of a piece, which stay in the first cache for its second reading
constexpr int64_t kSerial = 1 << 14; // values of an image below which one thread is faster

typedef float Vec __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
constexpr int64_t kWidth = 16;

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
inline Vec leaky(Vec sign, Vec values, Vec slope) { return sign > 0 ? values : values * slope; }

struct Shape {
    int64_t samples, channels, voxels, groups;
    bool last;
    int64_t outer, inner, repeat, lanes, padded, rows, pieces;

    Shape(int64_t samples, int64_t channels, int64_t voxels, int64_t groups, int last)
        : samples(samples), channels(channels), voxels(voxels), groups(groups), last(last != 0) {
        outer = last ? samples : samples * channels;
        inner = last ? channels : 1;
        repeat = 1;
        if (inner < 16 * kWidth)
            while (inner * repeat % kWidth) repeat *= 2;
        lanes = inner * repeat;
        padded = (lanes + kWidth - 1) / kWidth * kWidth;
        rows = kPiece / inner > 64 ? kPiece / inner : 64;
        rows = (rows + repeat - 1) / repeat * repeat;
        pieces = (voxels + rows - 1) / rows;
    }
    int64_t channel(int64_t block, int64_t lane) const { return last ? lane % inner : block % channels; }
    int64_t sample(int64_t block) const { return last ? block : block / channels; }
    int64_t group(int64_t block, int64_t lane) const {
        return sample(block) * groups + channel(block, lane) / (channels / groups);
    }
    int threads(int wanted) const {
        const int64_t work = outer * pieces;
        if (samples * channels * voxels < kSerial) return 1;
        return work < wanted ? static_cast<int>(work) : wanted;
    }
};

// Calls `visit(at, lane, count)` for up to kWidth values of a piece at a time: `at` in the piece, `lane` of a vector.
template <class Visit> void each(const Shape &shape, int64_t rows, Visit &&visit) {
    for (int64_t start = 0, all = rows * shape.inner; start < all; start += shape.lanes) {
        const int64_t end = all - start < shape.lanes ? all - start : shape.lanes;
        int64_t lane = 0;
        for (; lane + kWidth <= end; lane += kWidth) visit(start + lane, lane, kWidth);
        if (lane < end) visit(start + lane, lane, end - lane);
    }
}

// Adds up the `count` Vecs that `values(at, lane, width, out)` gives for a piece, by channel: sums[k * inner + c].
template <int count, class Values> void sum(const Shape &shape, int64_t rows, double *sums, Values &&values) {
    const int64_t inner = shape.inner, lanes = shape.lanes, all = rows * inner;
    for (int64_t k = 0; k < count * inner; ++k) sums[k] = 0;
    for (int64_t lane = 0; lane < lanes; lane += kWidth) {
        const int64_t width = lanes - lane < kWidth ? lanes - lane : kWidth;
        Vec total[count] = {}, one[count];
        int64_t start = lane;
        if (width == kWidth)
            for (; start + kWidth <= all; start += lanes) {
                values(start, lane, kWidth, one);
                for (int k = 0; k < count; ++k) total[k] += one[k];
            }
        for (; start < all; start += lanes) {
            const int64_t left = all - start < width ? all - start : width;
            values(start, lane, left, one);
            for (int k = 0; k < count; ++k)
                for (int64_t j = 0; j < left; ++j) total[k][j] += one[k][j];
        }
        for (int k = 0; k < count; ++k)
            for (int64_t j = 0; j < width; ++j) sums[k * inner + (lane + j) % inner] += total[k][j];
    }
}

struct Slopes {
    const float *values;
    int64_t count;
    float at(int64_t channel) const { return count == 0 ? 1.0f : values[count == 1 ? 0 : channel]; }
};

template <class T>
int forward(const T *image, T *output, float *mean, float *rstd, const float *weight, const float *bias, Slopes slopes,
            const Shape &shape, double eps, int threads) {
    const int64_t inner = shape.inner, lanes = shape.lanes, total = shape.outer * shape.pieces;
    double *means = static_cast<double *>(malloc(sizeof(double) * total * inner * 2));
    double *squares = means + total * inner;
    if (!means) return 1;
    int failed = 0;
#pragma omp parallel num_threads(shape.threads(threads))
    {
        float *scale = static_cast<float *>(calloc(shape.padded * 3, sizeof(float)));
        float *shift = scale + shape.padded, *slope = shift + shape.padded;
        if (!scale) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp barrier
        if (!failed) {
#pragma omp for
            for (int64_t piece = 0; piece < total; ++piece) {
                const int64_t block = piece / shape.pieces, first = piece % shape.pieces * shape.rows;
                const int64_t rows = shape.voxels - first < shape.rows ? shape.voxels - first : shape.rows;
                const T *part = image + (block * shape.voxels + first) * inner;
                double *average = means + piece * inner, *square = squares + piece * inner;
                sum<1>(shape, rows, average, [&](int64_t at, int64_t, int64_t width, Vec *one) { one[0] = load(part + at, width); });
                for (int64_t c = 0; c < inner; ++c) average[c] /= rows;
                for (int64_t j = 0; j < lanes; ++j) shift[j] = static_cast<float>(average[j % inner]);
                sum<1>(shape, rows, square, [&](int64_t at, int64_t lane, int64_t width, Vec *one) {
                    const Vec away = load(part + at, width) - load(shift + lane);
                    one[0] = away * away;
                });
                // The average was rounded to float32.
                for (int64_t c = 0; c < inner; ++c) {
                    const double off = average[c] - shift[c];
                    square[c] -= off * off * rows;
                }
            }
#pragma omp single
            for (int64_t group = 0; group < shape.samples * shape.groups; ++group) {
                const int64_t width = shape.channels / shape.groups, sample = group / shape.groups;
                double count = 0, average = 0, square = 0;
                for (int64_t c = group % shape.groups * width; c < (group % shape.groups + 1) * width; ++c) {
                    const int64_t block = shape.last ? sample : sample * shape.channels + c;
                    for (int64_t number = 0; number < shape.pieces; ++number) {
                        const int64_t left = shape.voxels - number * shape.rows;
                        const double rows = static_cast<double>(left < shape.rows ? left : shape.rows);
                        const int64_t at = (block * shape.pieces + number) * inner + (shape.last ? c : 0);
                        const double away = means[at] - average;
                        square += squares[at] + away * away * count * rows / (count + rows);
                        average += away * rows / (count + rows);
                        count += rows;
                    }
                }
                mean[group] = static_cast<float>(average);
                rstd[group] = static_cast<float>(1 / std::sqrt((square > 0 ? square : square == square ? 0 : square) / count + eps));
            }
            int64_t prepared = -1;
#pragma omp for
            for (int64_t piece = 0; piece < total; ++piece) {
                const int64_t block = piece / shape.pieces, first = piece % shape.pieces * shape.rows;
                const int64_t rows = shape.voxels - first < shape.rows ? shape.voxels - first : shape.rows;
                if (prepared != block)
                    for (int64_t j = 0; j < lanes; ++j) {
                        const int64_t channel = shape.channel(block, j), group = shape.group(block, j);
                        const double factor = static_cast<double>(rstd[group]) * (weight ? weight[channel] : 1.0f);
                        scale[j] = static_cast<float>(factor);
                        shift[j] = static_cast<float>((bias ? bias[channel] : 0.0f) - mean[group] * factor);
                        slope[j] = slopes.at(channel);
                    }
                prepared = block;
                const T *part = image + (block * shape.voxels + first) * inner;
                T *to = output + (block * shape.voxels + first) * inner;
                each(shape, rows, [&](int64_t at, int64_t lane, int64_t width) {
                    const Vec normed = load(part + at, width) * load(scale + lane) + load(shift + lane);
                    store(to + at, leaky(normed, normed, load(slope + lane)), width);
                });
            }
        }
        free(scale);
    }
    free(means);
    return failed;
}

// What a lane needs of its channel and group.
struct Lanes {
    float *scale, *shift, *weight, *bias, *slope, *of_gradient, *of_image, *offset;
    explicit Lanes(int64_t lanes) {
        scale = static_cast<float *>(calloc(lanes * 8, sizeof(float)));
        shift = scale + lanes, weight = shift + lanes, bias = weight + lanes, slope = bias + lanes;
        of_gradient = slope + lanes, of_image = of_gradient + lanes, offset = of_image + lanes;
    }
    ~Lanes() { free(scale); }
};

template <class T>
int backward(const T *gradient, const T *image, const float *mean, const float *rstd, const float *weight,
             const float *bias, Slopes slopes, T *to_image, float *to_weight, float *to_bias, float *to_slope,
             const Shape &shape, int threads) {
    const int64_t inner = shape.inner, lanes = shape.lanes, total = shape.outer * shape.pieces;
    const int64_t groups = shape.samples * shape.groups, each_channel = shape.samples * shape.channels;
    double *parts = static_cast<double *>(malloc(sizeof(double) * (total * inner * 3 + each_channel * 3 + groups * 2)));
    if (!parts) return 1;
    double *sums = parts + total * inner * 3, *through = sums + each_channel * 3, *along = through + groups;
    int failed = 0;
#pragma omp parallel num_threads(shape.threads(threads))
    {
        Lanes lane_of(shape.padded);
        if (!lane_of.scale) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp barrier
        if (!failed) {
            const float *scale = lane_of.scale, *shift = lane_of.shift, *factor = lane_of.weight;
            const float *offset = lane_of.bias, *slope = lane_of.slope;
            int64_t prepared = -1;
            auto prepare = [&](int64_t block) {
                if (prepared == block) return;
                for (int64_t j = 0; j < lanes; ++j) {
                    const int64_t channel = shape.channel(block, j), group = shape.group(block, j);
                    lane_of.scale[j] = rstd[group];
                    lane_of.shift[j] = static_cast<float>(-static_cast<double>(mean[group]) * rstd[group]);
                    lane_of.weight[j] = weight ? weight[channel] : 1.0f;
                    lane_of.bias[j] = bias ? bias[channel] : 0.0f;
                    lane_of.slope[j] = slopes.at(channel);
                }
                prepared = block;
            };
#pragma omp for
            for (int64_t piece = 0; piece < total; ++piece) {
                const int64_t block = piece / shape.pieces, first = piece % shape.pieces * shape.rows;
                const int64_t rows = shape.voxels - first < shape.rows ? shape.voxels - first : shape.rows;
                prepare(block);
                const T *part = image + (block * shape.voxels + first) * inner;
                const T *from = gradient + (block * shape.voxels + first) * inner;
                sum<3>(shape, rows, parts + piece * inner * 3, [&](int64_t at, int64_t lane, int64_t width, Vec *one) {
                    const Vec exact = load(part + at, width) * load(scale + lane) + load(shift + lane);
                    const Vec normed = exact * load(factor + lane) + load(offset + lane), after = load(from + at, width);
                    one[0] = leaky(normed, after, load(slope + lane));
                    one[1] = one[0] * exact;
                    one[2] = normed > 0 ? Vec{} : after * normed;
                });
            }
#pragma omp single
            {
                memset(sums, 0, sizeof(double) * (each_channel * 3 + groups * 2));
                for (int64_t piece = 0; piece < total; ++piece)
                    for (int64_t k = 0; k < 3; ++k)
                        for (int64_t c = 0; c < inner; ++c) {
                            const int64_t block = piece / shape.pieces;
                            sums[(shape.last ? block * inner + c : block) * 3 + k] += parts[(piece * 3 + k) * inner + c];
                        }
                for (int64_t c = 0; to_bias && c < shape.channels; ++c) to_weight[c] = to_bias[c] = 0;
                for (int64_t k = 0; k < slopes.count; ++k) to_slope[k] = 0;
                const double count = static_cast<double>(shape.voxels) * (shape.channels / shape.groups);
                double every = 0;
                for (int64_t c = 0; c < shape.channels; ++c) {
                    double sum_weight = 0, sum_bias = 0, sum_slope = 0;
                    for (int64_t sample = 0; sample < shape.samples; ++sample) {
                        const double *own = sums + (sample * shape.channels + c) * 3;
                        const int64_t group = sample * shape.groups + c / (shape.channels / shape.groups);
                        through[group] += own[0] * (weight ? weight[c] : 1.0f) / count;
                        along[group] += own[1] * (weight ? weight[c] : 1.0f) / count;
                        sum_bias += own[0], sum_weight += own[1], sum_slope += own[2];
                    }
                    if (to_bias) to_bias[c] = static_cast<float>(sum_bias), to_weight[c] = static_cast<float>(sum_weight);
                    if (slopes.count > 1) to_slope[c] = static_cast<float>(sum_slope);
                    every += sum_slope;
                }
                if (slopes.count == 1) to_slope[0] = static_cast<float>(every);
            }
            // With x^ the normalised image and g the gradient times the weight: rstd * (g - mean(g) - x^ * mean(g * x^)).
            prepared = -1;
            if (to_image) {
#pragma omp for
                for (int64_t piece = 0; piece < total; ++piece) {
                    const int64_t block = piece / shape.pieces, first = piece % shape.pieces * shape.rows;
                    const int64_t rows = shape.voxels - first < shape.rows ? shape.voxels - first : shape.rows;
                    if (prepared != block) {
                        prepare(block);
                        for (int64_t j = 0; j < lanes; ++j) {
                            const int64_t group = shape.group(block, j);
                            const double spread = rstd[group];
                            lane_of.of_gradient[j] = static_cast<float>(spread * factor[j]);
                            lane_of.of_image[j] = static_cast<float>(-spread * along[group]);
                            lane_of.offset[j] = static_cast<float>(-spread * through[group]);
                        }
                    }
                    const T *part = image + (block * shape.voxels + first) * inner;
                    const T *from = gradient + (block * shape.voxels + first) * inner;
                    T *to = to_image + (block * shape.voxels + first) * inner;
                    const float *of_gradient = lane_of.of_gradient, *of_image = lane_of.of_image, *start = lane_of.offset;
                    each(shape, rows, [&](int64_t at, int64_t lane, int64_t width) {
                        const Vec exact = load(part + at, width) * load(scale + lane) + load(shift + lane);
                        const Vec normed = exact * load(factor + lane) + load(offset + lane);
                        const Vec before = leaky(normed, load(from + at, width), load(slope + lane));
                        store(to + at, before * load(of_gradient + lane) + (exact * load(of_image + lane) + load(start + lane)), width);
                    });
                }
            }
        }
    }
    free(parts);
    return failed;
}

} // namespace

extern "C" int norm_act(const void *image, void *output, float *mean, float *rstd, const float *weight,
                        const float *bias, const float *slopes, int64_t slope_count, int64_t samples, int64_t channels,
                        int64_t voxels, int64_t groups, int last, int bfloat16, double eps, int threads) {
    const Shape shape(samples, channels, voxels, groups, last);
    const Slopes all{slopes, slope_count};
    if (bfloat16)
        return forward(static_cast<const BFloat16 *>(image), static_cast<BFloat16 *>(output), mean, rstd, weight, bias,
                       all, shape, eps, threads);
    return forward(static_cast<const float *>(image), static_cast<float *>(output), mean, rstd, weight, bias, all,
                   shape, eps, threads);
}

extern "C" int norm_act_backward(const void *gradient, const void *image, const float *mean, const float *rstd,
                                 const float *weight, const float *bias, const float *slopes, int64_t slope_count,
                                 void *to_image, float *to_weight, float *to_bias, float *to_slope, int64_t samples,
                                 int64_t channels, int64_t voxels, int64_t groups, int last, int bfloat16,
                                 int threads) {
    const Shape shape(samples, channels, voxels, groups, last);
    const Slopes all{slopes, slope_count};
    if (bfloat16)
        return backward(static_cast<const BFloat16 *>(gradient), static_cast<const BFloat16 *>(image), mean, rstd, weight,
                        bias, all, static_cast<BFloat16 *>(to_image), to_weight, to_bias, to_slope, shape, threads);
    return backward(static_cast<const float *>(gradient), static_cast<const float *>(image), mean, rstd, weight, bias,
                    all, static_cast<float *>(to_image), to_weight, to_bias, to_slope, shape, threads);
}
