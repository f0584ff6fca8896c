// Norm, dropout and activation of an image, forward and backward, on a CPU.
//
// An image is `outer` blocks of `voxels` rows of `inner` values: (B, voxels, C) in channels-last, (B * C, voxels, 1)
// else. A block is cut into pieces of whole rows. Sums of pieces are combined in float64 in the order of the pieces, so
// that results do not depend on the number of threads. Within a piece, `repeat` rows are read as one row of `lanes`
// values, so that a few channels fill a vector register too.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "vectors.h"

extern "C" struct Settings {
    int64_t samples, channels, voxels;
    int64_t groups; // of the channels of each sample; 0: a batch norm
    int64_t slopes; // 0: no activation, 1, or one for each channel
    int64_t seed;
    double eps, dropout;
    int32_t last, bfloat16;
    int32_t fixed; // the statistics are given
    int32_t threads;
};

namespace {

constexpr int64_t kPiece = 8192;     // values of a piece, which stay in the first cache for a second reading
constexpr int64_t kSerial = 1 << 14; // values of an image below which one thread is faster

inline Vec leaky(Vec sign, Vec values, Vec slope) { return sign > 0 ? values : values * slope; }

struct Layout : Settings {
    int64_t outer, inner, repeat, lanes, padded, rows, pieces, total;

    explicit Layout(const Settings &settings) : Settings(settings) {
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
        total = outer * pieces;
        if (samples * channels * voxels < kSerial) threads = 1;
        if (total < threads) threads = static_cast<int32_t>(total);
    }
    int64_t channel(int64_t block, int64_t lane) const { return last ? lane % inner : block % channels; }
    int64_t group(int64_t block, int64_t lane) const {
        if (!groups) return channel(block, lane);
        return (last ? block : block / channels) * groups + channel(block, lane) / (channels / groups);
    }
    int64_t all_groups() const { return groups ? samples * groups : channels; }
    double group_size() const { return static_cast<double>(voxels) * (groups ? channels / groups : samples); }
    int64_t rows_of(int64_t piece) const {
        const int64_t left = voxels - piece % pieces * rows;
        return left < rows ? left : rows;
    }
    int64_t start_of(int64_t piece) const { return (piece / pieces * voxels + piece % pieces * rows) * inner; }
};

// The factors of a dropout: 0, or 1 / (1 - p). They depend on the seed, the piece and the place in it alone.
class Dropout {
  public:
    Dropout(const Settings &settings, int64_t piece) {
        uint64_t key = settings.seed + 0x9e3779b97f4a7c15u * static_cast<uint64_t>(piece + 1); // SplitMix64
        key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
        key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
        key ^= key >> 31;
        first_ = static_cast<uint32_t>(key), second_ = static_cast<uint32_t>(key >> 32);
        active_ = settings.dropout > 0;
        least_ = static_cast<uint32_t>(settings.dropout * 4294967296.0);
        factor_ = static_cast<float>(1 / (1 - settings.dropout));
    }
    Vec of(Vec values, int64_t at) const {
        if (!active_) return values;
        Bits bits;
        for (int64_t lane = 0; lane < kWidth; ++lane) bits[lane] = static_cast<uint32_t>(at + lane);
        bits ^= first_; // Wellons' lowbias32, with a second key
        bits = (bits ^ (bits >> 16)) * 0x7feb352du;
        bits = ((bits ^ (bits >> 15)) + second_) * 0x846ca68bu;
        bits = (bits ^ (bits >> 16)) * 0x9e3779b1u;
        bits ^= bits >> 15;
        return bits >= least_ ? values * factor_ : Vec{};
    }

  private:
    uint32_t first_, second_, least_;
    float factor_;
    bool active_;
};

// Calls `visit(at, lane, count)` for up to kWidth values of a piece at a time: `at` in the piece, `lane` in its rows.
template <class Visit> void each(const Layout &layout, int64_t rows, Visit &&visit) {
    for (int64_t start = 0, all = rows * layout.inner; start < all; start += layout.lanes) {
        const int64_t end = all - start < layout.lanes ? all - start : layout.lanes;
        int64_t lane = 0;
        for (; lane + kWidth <= end; lane += kWidth) visit(start + lane, lane, kWidth);
        if (lane < end) visit(start + lane, lane, end - lane);
    }
}

// Adds up the Vecs that `values(at, lane, width, out)` gives for a piece, by channel: sums[k * inner + c].
template <int count, class Values> void sum(const Layout &layout, int64_t rows, double *sums, Values &&values) {
    const int64_t inner = layout.inner, lanes = layout.lanes, all = rows * inner;
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

// Values of channels and groups, spread over the lanes of a block: `count` arrays.
class Lanes {
  public:
    Lanes(const Layout &layout, int count) : layout_(layout), padded_(layout.padded) {
        values_ = static_cast<float *>(calloc(padded_ * count, sizeof(float)));
    }
    ~Lanes() { free(values_); }
    explicit operator bool() const { return values_; }
    float *operator[](int number) const { return values_ + padded_ * number; }
    Vec at(int number, int64_t lane) const { return load(values_ + padded_ * number + lane); }
    // Calls `set(lane, channel, group)` if the block is another one than before.
    template <class Set> void prepare(int64_t block, Set &&set) {
        if (block_ == block) return;
        block_ = block;
        for (int64_t lane = 0; lane < layout_.lanes; ++lane)
            set(lane, layout_.channel(block, lane), layout_.group(block, lane));
    }
    void forget() { block_ = -1; }

  private:
    const Layout &layout_;
    int64_t padded_, block_ = -1;
    float *values_;
};

inline float or_else(const float *values, int64_t number, float without) { return values ? values[number] : without; }

inline float slope_of(const Settings &settings, const float *slopes, int64_t channel) {
    return settings.slopes ? slopes[settings.slopes > 1 ? channel : 0] : 1.0f;
}

// Mean and sum of squared differences from it of each channel of a piece; `shift`: scratch of `lanes`.
template <class T>
void moments(const Layout &layout, const T *part, int64_t rows, float *shift, double *means, double *squares) {
    sum<1>(layout, rows, means, [&](int64_t at, int64_t, int64_t width, Vec *one) { one[0] = load(part + at, width); });
    for (int64_t c = 0; c < layout.inner; ++c) means[c] /= rows;
    for (int64_t lane = 0; lane < layout.lanes; ++lane) shift[lane] = static_cast<float>(means[lane % layout.inner]);
    sum<1>(layout, rows, squares, [&](int64_t at, int64_t lane, int64_t width, Vec *one) {
        const Vec away = load(part + at, width) - load(shift + lane);
        one[0] = away * away;
    });
    for (int64_t c = 0; c < layout.inner; ++c) { // the mean was rounded to float32
        const double off = means[c] - shift[c];
        squares[c] -= off * off * rows;
    }
}

// Mean and biased variance of each group from those of pieces (Chan et al.). scratch: 3 for each group.
void combine(const Layout &layout, const double *means, const double *squares, double *scratch, float *mean,
             float *var) {
    const int64_t groups = layout.all_groups(), inner = layout.inner;
    double *count = scratch, *average = count + groups, *square = average + groups;
    for (int64_t k = 0; k < 3 * groups; ++k) scratch[k] = 0;
    for (int64_t piece = 0; piece < layout.total; ++piece) {
        const double rows = static_cast<double>(layout.rows_of(piece));
        for (int64_t c = 0; c < inner; ++c) {
            const int64_t group = layout.group(piece / layout.pieces, c);
            const double away = means[piece * inner + c] - average[group], all = count[group] + rows;
            square[group] += squares[piece * inner + c] + away * away * count[group] * rows / all;
            average[group] += away * rows / all;
            count[group] = all;
        }
    }
    for (int64_t group = 0; group < groups; ++group) {
        mean[group] = static_cast<float>(average[group]);
        var[group] = static_cast<float>(square[group] < 0 ? 0 : square[group] / count[group]);
    }
}

template <class T>
int forward(const T *image, T *output, float *mean, float *var, const float *weight, const float *bias,
            const float *slopes, const Layout &layout) {
    enum { scale, shift, slope };
    const int64_t inner = layout.inner;
    double *parts = static_cast<double *>(malloc(sizeof(double) * (layout.total * inner * 2 + layout.all_groups() * 3)));
    if (!parts) return 1;
    double *means = parts, *squares = means + layout.total * inner, *scratch = squares + layout.total * inner;
    int failed = 0;
#pragma omp parallel num_threads(layout.threads)
    {
        Lanes lanes(layout, 3);
        if (all_have(static_cast<bool>(lanes), failed)) {
            if (!layout.fixed) {
#pragma omp for
                for (int64_t piece = 0; piece < layout.total; ++piece)
                    moments(layout, image + layout.start_of(piece), layout.rows_of(piece), lanes[shift],
                            means + piece * inner, squares + piece * inner);
#pragma omp single
                combine(layout, means, squares, scratch, mean, var);
            }
#pragma omp for
            for (int64_t piece = 0; piece < layout.total; ++piece) {
                lanes.prepare(piece / layout.pieces, [&](int64_t lane, int64_t channel, int64_t group) {
                    const double factor = or_else(weight, channel, 1) / std::sqrt(var[group] + layout.eps);
                    lanes[scale][lane] = static_cast<float>(factor);
                    lanes[shift][lane] = static_cast<float>(or_else(bias, channel, 0) - mean[group] * factor);
                    lanes[slope][lane] = slope_of(layout, slopes, channel);
                });
                const T *part = image + layout.start_of(piece);
                T *to = output + layout.start_of(piece);
                const Dropout dropout(layout, piece);
                each(layout, layout.rows_of(piece), [&](int64_t at, int64_t lane, int64_t width) {
                    const Vec normed = load(part + at, width) * lanes.at(scale, lane) + lanes.at(shift, lane);
                    const Vec before = dropout.of(normed, at);
                    store(to + at, leaky(before, before, lanes.at(slope, lane)), width);
                });
            }
        }
    }
    free(parts);
    return failed;
}

struct Gradients {
    void *image; // null: not wanted
    float *weight, *bias, *slope;
};

// The gradients of weight, bias and slopes from the sums of pieces, and what that of the image needs of each group.
void reduce(const Layout &layout, const double *parts, const float *weight, double *sums, double *through,
            double *along, const Gradients &to) {
    const int64_t inner = layout.inner;
    memset(sums, 0, sizeof(double) * layout.channels * 3);
    memset(through, 0, sizeof(double) * layout.all_groups());
    memset(along, 0, sizeof(double) * layout.all_groups());
    for (int64_t piece = 0; piece < layout.total; ++piece)
        for (int64_t c = 0; c < inner; ++c) {
            const int64_t block = piece / layout.pieces, channel = layout.channel(block, c);
            const int64_t group = layout.group(block, c);
            const double *own = parts + piece * 3 * inner + c;
            for (int64_t k = 0; k < 3; ++k) sums[channel * 3 + k] += own[k * inner];
            if (layout.fixed) continue; // given statistics do not depend on the image
            through[group] += own[0] * or_else(weight, channel, 1) / layout.group_size();
            along[group] += own[inner] * or_else(weight, channel, 1) / layout.group_size();
        }
    double slope = 0;
    for (int64_t c = 0; c < layout.channels; ++c) {
        to.bias[c] = static_cast<float>(sums[c * 3]), to.weight[c] = static_cast<float>(sums[c * 3 + 1]);
        slope += sums[c * 3 + 2];
        if (layout.slopes > 1) to.slope[c] = static_cast<float>(sums[c * 3 + 2]);
    }
    if (layout.slopes == 1) to.slope[0] = static_cast<float>(slope);
}

// With x^ the normalised image and g the gradient before the norm times the weight, that of the image is
// rstd * (g - mean(g) - x^ * mean(g * x^)).
template <class T>
int backward(const T *gradient, const T *image, const float *mean, const float *var, const float *weight,
             const float *bias, const float *slopes, const Gradients &to, const Layout &layout) {
    enum { scale, shift, factor, offset, slope, of_gradient, of_image, start };
    const int64_t inner = layout.inner, groups = layout.all_groups(), count = layout.total * inner * 3;
    double *parts = static_cast<double *>(malloc(sizeof(double) * (count + layout.channels * 3 + groups * 2)));
    if (!parts) return 1;
    double *sums = parts + count, *through = sums + layout.channels * 3, *along = through + groups;
    int failed = 0;
#pragma omp parallel num_threads(layout.threads)
    {
        Lanes lanes(layout, 8);
        if (all_have(static_cast<bool>(lanes), failed)) {
            auto set = [&](int64_t lane, int64_t channel, int64_t group) {
                const double spread = 1 / std::sqrt(var[group] + layout.eps);
                lanes[scale][lane] = static_cast<float>(spread);
                lanes[shift][lane] = static_cast<float>(-mean[group] * spread);
                lanes[factor][lane] = or_else(weight, channel, 1);
                lanes[offset][lane] = or_else(bias, channel, 0);
                lanes[slope][lane] = slope_of(layout, slopes, channel);
            };
#pragma omp for
            for (int64_t piece = 0; piece < layout.total; ++piece) {
                lanes.prepare(piece / layout.pieces, set);
                const T *part = image + layout.start_of(piece), *from = gradient + layout.start_of(piece);
                const Dropout dropout(layout, piece);
                sum<3>(layout, layout.rows_of(piece), parts + piece * inner * 3,
                       [&](int64_t at, int64_t lane, int64_t width, Vec *one) {
                           const Vec exact = load(part + at, width) * lanes.at(scale, lane) + lanes.at(shift, lane);
                           const Vec normed = exact * lanes.at(factor, lane) + lanes.at(offset, lane);
                           const Vec after = load(from + at, width), before = dropout.of(normed, at);
                           one[0] = dropout.of(leaky(before, after, lanes.at(slope, lane)), at);
                           one[1] = one[0] * exact;
                           one[2] = before > 0 ? Vec{} : after * before;
                       });
            }
#pragma omp single
            reduce(layout, parts, weight, sums, through, along, to);
            lanes.forget();
            if (to.image) {
#pragma omp for
                for (int64_t piece = 0; piece < layout.total; ++piece) {
                    lanes.prepare(piece / layout.pieces, [&](int64_t lane, int64_t channel, int64_t group) {
                        set(lane, channel, group);
                        const double spread = 1 / std::sqrt(var[group] + layout.eps);
                        lanes[of_gradient][lane] = static_cast<float>(spread * or_else(weight, channel, 1));
                        lanes[of_image][lane] = static_cast<float>(-spread * along[group]);
                        lanes[start][lane] = static_cast<float>(-spread * through[group]);
                    });
                    const T *part = image + layout.start_of(piece), *from = gradient + layout.start_of(piece);
                    T *result = static_cast<T *>(to.image) + layout.start_of(piece);
                    const Dropout dropout(layout, piece);
                    each(layout, layout.rows_of(piece), [&](int64_t at, int64_t lane, int64_t width) {
                        const Vec exact = load(part + at, width) * lanes.at(scale, lane) + lanes.at(shift, lane);
                        const Vec before = dropout.of(exact * lanes.at(factor, lane) + lanes.at(offset, lane), at);
                        const Vec after = leaky(before, load(from + at, width), lanes.at(slope, lane));
                        const Vec common = exact * lanes.at(of_image, lane) + lanes.at(start, lane);
                        store(result + at, dropout.of(after, at) * lanes.at(of_gradient, lane) + common, width);
                    });
                }
            }
        }
    }
    free(parts);
    return failed;
}

} // namespace

// Pointers of a norm without weights or an activation without slopes are null. Returns 1 where memory runs out.
extern "C" int norm_act(const Settings *settings, const void *image, void *output, float *mean, float *var,
                        const float *weight, const float *bias, const float *slopes) {
    const Layout layout(*settings);
    if (layout.bfloat16)
        return forward(static_cast<const BFloat16 *>(image), static_cast<BFloat16 *>(output), mean, var, weight, bias,
                       slopes, layout);
    return forward(static_cast<const float *>(image), static_cast<float *>(output), mean, var, weight, bias, slopes,
                   layout);
}

extern "C" int norm_act_backward(const Settings *settings, const void *gradient, const void *image, const float *mean,
                                 const float *var, const float *weight, const float *bias, const float *slopes,
                                 void *to_image, float *to_weight, float *to_bias, float *to_slope) {
    const Layout layout(*settings);
    const Gradients to{to_image, to_weight, to_bias, to_slope};
    if (layout.bfloat16)
        return backward(static_cast<const BFloat16 *>(gradient), static_cast<const BFloat16 *>(image), mean, var,
                        weight, bias, slopes, to, layout);
    return backward(static_cast<const float *>(gradient), static_cast<const float *>(image), mean, var, weight, bias,
                    slopes, to, layout);
}
