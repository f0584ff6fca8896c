// Soft overlap of the soft-max of scores with labels, and its gradient, each in one pass, on a CPU.
//
// Scores are (B, K, voxels), or (B, voxels, K) in channels-last. A sample is cut into pieces, whose sums are combined in
// float64 in the order of the pieces, so that results do not depend on the number of threads.

#include <cstdint>
#include <cstdlib>

#include "vectors.h"

extern "C" struct ScoreSettings {
    int64_t samples, classes, voxels;
    int64_t ignored; // label of voxels that do not count
    int32_t last, wide, surprised, threads; // wide: labels are int64, else uint8
};

namespace {

constexpr int kMost = 64;       // classes
constexpr int64_t kPart = 4096; // voxels of a piece

// Shares, one Vec for each class, and labels of neighbouring voxels; -1 for what does not count.
struct Voxels {
    Vec scores[kMost], shares[kMost], surprise;
    Ints labels;
};

template <class Label> struct Cut : ScoreSettings {
    int64_t pieces, total;
    const float *all_scores;
    const Label *all_labels;

    Cut(const ScoreSettings &settings, const float *scores, const void *labels)
        : ScoreSettings(settings), all_scores(scores), all_labels(static_cast<const Label *>(labels)) {
        pieces = (voxels + kPart - 1) / kPart;
        total = samples * pieces;
        if (total < threads) threads = static_cast<int32_t>(total);
    }
    int64_t first(int64_t piece) const { return piece % pieces * kPart; }
    int64_t end(int64_t piece) const { return first(piece) + kPart < voxels ? first(piece) + kPart : voxels; }
    int64_t start(int64_t piece) const { return piece / pieces * classes * voxels; }

    // Reads `count` voxels from `at` on. False where a label is none of the classes.
    bool read(int64_t piece, int64_t at, int64_t count, Voxels &to) const {
        const float *from = all_scores + start(piece);
        const Label *label = all_labels + piece / pieces * voxels + at;
        bool valid = true;
        to.labels = Ints{} - 1;
        for (int64_t j = 0; j < count; ++j) {
            const int64_t value = static_cast<int64_t>(label[j]);
            if (value == ignored) continue;
            valid = valid && value >= 0 && value < classes;
            to.labels[j] = static_cast<int32_t>(value);
        }
        if (last) {
            from += at * classes;
            for (int64_t k = 0; k < classes; ++k) {
                float own[kWidth];
                for (int64_t j = 0; j < kWidth; ++j) own[j] = j < count ? from[j * classes + k] : 0;
                to.scores[k] = load(own);
            }
        } else
            for (int64_t k = 0; k < classes; ++k) to.scores[k] = load(from + k * voxels + at, count);
        return valid;
    }
    void share(Voxels &of) const {
        Vec most = of.scores[0], sum = {}, own = {};
        for (int64_t k = 1; k < classes; ++k) most = larger(most, of.scores[k]);
        for (int64_t k = 0; k < classes; ++k) {
            of.shares[k] = exponential(of.scores[k] - most);
            sum += of.shares[k];
            own = of.labels == static_cast<int32_t>(k) ? of.scores[k] : own;
        }
        const Vec factor = of.labels >= 0 ? 1.0f / sum : Vec{};
        for (int64_t k = 0; k < classes; ++k) of.shares[k] *= factor;
        if (surprised) of.surprise = most - own + logarithm(sum);
    }
    void write(int64_t piece, int64_t at, int64_t count, const Vec *values, float *to) const {
        to += start(piece);
        if (last) {
            to += at * classes;
            for (int64_t k = 0; k < classes; ++k) {
                float own[kWidth];
                store(own, values[k]);
                for (int64_t j = 0; j < count; ++j) to[j * classes + k] = own[j];
            }
        } else
            for (int64_t k = 0; k < classes; ++k) store(to + k * voxels + at, values[k], count);
    }
};

// counts: (4, samples, classes): hit, predicted, labelled and surprise.
template <class Label> int count(const Cut<Label> &cut, float *counts) {
    enum { hit, predicted, labelled, surprise };
    const int64_t each = 4 * cut.classes;
    double *sums = static_cast<double *>(calloc(cut.total * each, sizeof(double)));
    if (!sums) return 1;
    int failed = 0;
#pragma omp parallel for num_threads(cut.threads)
    for (int64_t piece = 0; piece < cut.total; ++piece) {
        Vec totals[4][kMost] = {};
        Voxels voxels;
        for (int64_t at = cut.first(piece); at < cut.end(piece); at += kWidth) {
            const int64_t left = cut.end(piece) - at;
            if (!cut.read(piece, at, left < kWidth ? left : kWidth, voxels)) {
#pragma omp atomic write
                failed = 2;
            }
            cut.share(voxels);
            for (int64_t k = 0; k < cut.classes; ++k) {
                const Ints own = voxels.labels == static_cast<int32_t>(k);
                totals[hit][k] += own ? voxels.shares[k] : Vec{};
                totals[predicted][k] += voxels.shares[k];
                totals[labelled][k] += own ? Vec{} + 1.0f : Vec{};
                if (cut.surprised) totals[surprise][k] += own ? voxels.surprise : Vec{};
            }
        }
        for (int64_t number = 0; number < 4; ++number)
            for (int64_t k = 0; k < cut.classes; ++k)
                for (int64_t j = 0; j < kWidth; ++j) sums[piece * each + number * cut.classes + k] += totals[number][k][j];
    }
    for (int64_t number = 0; number < 4; ++number)
        for (int64_t sample = 0; sample < cut.samples; ++sample)
            for (int64_t k = 0; k < cut.classes; ++k) {
                double sum = 0;
                for (int64_t piece = sample * cut.pieces; piece < (sample + 1) * cut.pieces; ++piece)
                    sum += sums[piece * each + number * cut.classes + k];
                counts[(number * cut.samples + sample) * cut.classes + k] = static_cast<float>(sum);
            }
    free(sums);
    return failed;
}

// to_hit, to_predicted, to_surprise: (samples, classes); the last one may be null.
template <class Label>
void differentiate(const Cut<Label> &cut, const float *to_hit, const float *to_predicted, const float *to_surprise,
                   float *gradient) {
#pragma omp parallel for num_threads(cut.threads)
    for (int64_t piece = 0; piece < cut.total; ++piece) {
        const int64_t row = piece / cut.pieces * cut.classes;
        Voxels voxels;
        Vec slopes[kMost];
        for (int64_t at = cut.first(piece); at < cut.end(piece); at += kWidth) {
            const int64_t left = cut.end(piece) - at, width = left < kWidth ? left : kWidth;
            cut.read(piece, at, width, voxels);
            cut.share(voxels);
            Vec common = {}, own_surprise = {};
            for (int64_t k = 0; k < cut.classes; ++k) {
                const Ints own = voxels.labels == static_cast<int32_t>(k);
                slopes[k] = (own ? Vec{} + to_hit[row + k] : Vec{}) + to_predicted[row + k];
                common += slopes[k] * voxels.shares[k];
                if (to_surprise) own_surprise = own ? Vec{} + to_surprise[row + k] : own_surprise;
            }
            common -= own_surprise;
            for (int64_t k = 0; k < cut.classes; ++k) {
                const Ints own = voxels.labels == static_cast<int32_t>(k);
                slopes[k] = voxels.shares[k] * (slopes[k] - common) - (own ? own_surprise : Vec{});
            }
            cut.write(piece, at, width, slopes, gradient);
        }
    }
}

} // namespace

// Returns 1 where memory runs out, 2 for a label that is none of the classes.
extern "C" int soft_counts(const ScoreSettings *settings, const float *scores, const void *labels, float *counts) {
    if (settings->wide) return count(Cut<int64_t>(*settings, scores, labels), counts);
    return count(Cut<uint8_t>(*settings, scores, labels), counts);
}

extern "C" int soft_counts_backward(const ScoreSettings *settings, const float *scores, const void *labels,
                                    const float *to_hit, const float *to_predicted, const float *to_surprise,
                                    float *gradient) {
    if (settings->wide)
        differentiate(Cut<int64_t>(*settings, scores, labels), to_hit, to_predicted, to_surprise, gradient);
    else
        differentiate(Cut<uint8_t>(*settings, scores, labels), to_hit, to_predicted, to_surprise, gradient);
    return 0;
}
