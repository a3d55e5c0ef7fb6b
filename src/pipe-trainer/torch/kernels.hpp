// Every kernel of kernels.cu, quantized.cu and attention*.cu that can be launched: its name, its threads and its shared memory. Launchers ask here, and
// tests/cuda_on_cpu/nvrtc.cpp compiles all of them for every kind of card. Needs nothing but the standard library.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kernels {

struct Kernel {
  std::string name;  // as C++ writes it, for example drop_add<BF16, float, float>
  unsigned threads;
  unsigned shared = 0;   // bytes of dynamic shared memory
  std::string bytes{};   // what the source itself says `shared` is
};

enum class Type { bf16, f16, f32 };
constexpr Type TYPES[] = {Type::bf16, Type::f16, Type::f32};

inline std::string name(Type type) {
  static const char* names[] = {"BF16", "F16", "float"};
  return names[int(type)];
}

// --- Dropout ------------------------------------------------------------------------------------------------------------------

inline Kernel drop_add(Type in, Type out) {
  return {"drop_add<" + name(in) + ", " + name(out) + ", " + name(out) + ">", 256};
}

inline Kernel drop_weights(Type type) {
  return {"drop_weights<" + name(type) + ">", 256};
}

// --- Norms --------------------------------------------------------------------------------------------------------------------

constexpr int64_t WIDEST_NORM = 4096;

struct Norm {
  // Each of the last two is the first, or fp32.
  Type out, sum, weight;
  int64_t width;

  Kernel forward() const { return kernel("add_norm"); }
  Kernel backward() const { return kernel("add_norm_backward"); }
  Kernel rms_forward() const { return kernel("rms_norm"); }
  Kernel rms_backward() const { return kernel("rms_norm_backward"); }

 private:
  static constexpr unsigned THREADS = 128;
  // A thread takes so many groups of eight of a row.
  int64_t groups() const { return (width / 8 + THREADS - 1) / THREADS; }
  Kernel kernel(const char* of) const {
    return {std::string(of) + "<" + name(out) + ", " + name(sum) + ", " + name(weight) + ", " + std::to_string(groups()) + ">", THREADS};
  }
};

// --- Activations --------------------------------------------------------------------------------------------------------------

// In the order of `Activation` in pipe-model.
constexpr const char* ACTIVATIONS[] = {"RELU", "GELU", "GELU_TANH", "QUICK_GELU", "SILU", "TANH"};

struct Activation {
  static constexpr unsigned THREADS = 128;

  // That of the bias is the first, or fp32.
  Type type, bias;
  int64_t kind;

  Kernel forward() const { return kernel("activate"); }
  Kernel backward() const { return kernel("activate_backward"); }

 private:
  Kernel kernel(const char* of) const {
    return {std::string(of) + "<" + name(type) + ", " + name(bias) + ", " + ACTIVATIONS[kind] + ">", THREADS};
  }
};

// --- Attention ----------------------------------------------------------------------------------------------------------------

constexpr int64_t WIDEST_HEAD = 128;

// The oldest card with the instructions that attention is made of: 80 is 8.0.
constexpr int ATTENTION_SINCE = 80;

struct Attention {
  static constexpr unsigned THREADS = 128;
  static constexpr int64_t QUERIES = 128;

  Type type;
  int64_t width;
  bool has_bias, drops;

  int64_t padded() const { return (width + 31) / 32 * 32; }
  // Keys that a block of the backward pass takes.
  int64_t keys() const { return padded() <= 64 ? 128 : 64; }

  Kernel forward() const {
    int64_t keys = padded() <= 64 ? 64 : 32;
    return kernel("attention_forward", 4 * keys * pitch() + (padded() <= 64 ? 0 : QUERIES * pitch()) + 2 * (QUERIES + keys) * 4, "ForwardShape<" + word() + ">");
  }
  Kernel rows() const { return {"attention_backward_rows<" + name(type) + ">", THREADS}; }
  Kernel of_keys() const {
    auto shared = 2 * keys() * pitch() + 2 * (2 * 32 * pitch() + 2 * 32 * 4) + 2 * (32 + keys()) * 4;
    return kernel("attention_backward_keys", shared, "KeysShape<" + word() + ">");
  }
  Kernel of_queries() const {
    auto shared = 2 * QUERIES * pitch() + (padded() <= 96 ? 4 : 2) * 32 * pitch();
    if (has_bias) shared += (2 * (QUERIES + 32) + 4 * 8 * 72 + 4 * 2 * 32) * 4;
    return kernel("attention_backward_queries", shared, "QueriesShape<" + word() + ", " + flag(has_bias) + ">");
  }
  static Kernel bias_sum() { return {"attention_bias_sum", THREADS}; }

 private:
  static const char* flag(bool on) { return on ? "true" : "false"; }
  std::string word() const { return std::to_string(padded()); }
  // Bytes from row to row in shared memory.
  int64_t pitch() const { return 2 * (padded() + 8); }
  Kernel kernel(const char* of, int64_t shared, const std::string& shape) const {
    auto variant = "<" + name(type) + ", " + word() + ", " + flag(has_bias) + ", " + flag(drops) + ">";
    return {of + variant, THREADS, unsigned(shared), shape + "::BYTES"};
  }
};

// --- Rotary positions ---------------------------------------------------------------------------------------------------------

inline Kernel turn(Type type) {
  return {"turn<" + name(type) + ">", 256};
}

// --- Losses -------------------------------------------------------------------------------------------------------------------

inline Kernel cross_entropy(Type type) {
  return {"cross_entropy<" + name(type) + ">", 512};
}

// --- Sums, updates of parameters, and a wait ----------------------------------------------------------------------------------------

// The columns of matrices in fp32. A block takes SUM_COLUMNS of them.
constexpr int64_t SUM_COLUMNS = 32;
inline Kernel sum_rows(Type out) { return {"sum_rows<" + name(out) + ">", 1024}; }
// Some rows of matrices whose width is a multiple of eight. A block takes SOME_COLUMNS columns, eight rows at a time.
constexpr int64_t SOME_COLUMNS = 256;
inline Kernel sum_some_rows(Type in) { return {"sum_some_rows<" + name(in) + ">", 256}; }
inline Kernel scale_all(Type type) { return {"scale_all<" + name(type) + ">", 256}; }
inline Kernel sum_squares(Type type) { return {"sum_squares<" + name(type) + ">", 256}; }
// Of parameters in bf16 or fp32.
inline Kernel adamw(Type type) { return {"adamw<" + name(type) + ">", 256}; }
inline Kernel round_to_bf16() { return {"round_to_bf16", 256}; }
inline Kernel spin() { return {"spin", 512}; }

// --- Quantized weights and moments ----------------------------------------------------------------------------------------------

// With so many rows a product reads a matrix of 4 bits as it is; with more it is made wide first.
constexpr int64_t FEW_ROWS = 4;

inline Kernel dequantize_nf4(Type type) { return {"dequantize_nf4<" + name(type) + ">", 256}; }
// Of `rows` rows at most with a matrix of 4 bits.
inline Kernel multiply_nf4(Type type, int64_t rows) {
  int64_t most = rows <= 1 ? 1 : rows <= 2 ? 2 : FEW_ROWS;
  return {"multiply_nf4<" + name(type) + ", " + std::to_string(most) + ">", 256};
}
inline Kernel dequantize_int8(Type type) { return {"dequantize_int8<" + name(type) + ">", 128}; }
// Of parameters in bf16 or fp32.
inline Kernel adamw_8bit(Type type) { return {"adamw_8bit<" + name(type) + ">", 256}; }

// --- All of them --------------------------------------------------------------------------------------------------------------

// Those that every card has.
inline std::vector<Kernel> general() {
  std::vector<Kernel> all{adamw(Type::bf16), adamw(Type::f32), round_to_bf16(), spin(), adamw_8bit(Type::bf16), adamw_8bit(Type::f32)};
  for (auto type : TYPES) {
    all.push_back(dequantize_nf4(type));
    all.push_back(dequantize_int8(type));
    for (int64_t rows : {1, 2, 4}) all.push_back(multiply_nf4(type, rows));
    all.push_back(drop_weights(type));
    all.push_back(sum_rows(type));
    all.push_back(sum_some_rows(type));
    all.push_back(sum_squares(type));
    all.push_back(scale_all(type));
    all.push_back(cross_entropy(type));
    all.push_back(turn(type));
    for (auto out : TYPES) all.push_back(drop_add(type, out));
    auto wide = type == Type::f32 ? std::vector<Type>{type} : std::vector<Type>{type, Type::f32};
    for (auto weight : wide) {
      for (auto sum : wide) {
        for (int64_t width = 1024; width <= WIDEST_NORM; width += 1024) {
          Norm norm{type, sum, weight, width};
          for (auto kernel : {norm.forward(), norm.backward(), norm.rms_forward(), norm.rms_backward()}) all.push_back(kernel);
        }
      }
      for (size_t kind = 0; kind < std::size(ACTIVATIONS); kind++) {
        all.push_back(Activation{type, weight, int64_t(kind)}.forward());
        all.push_back(Activation{type, weight, int64_t(kind)}.backward());
      }
    }
  }
  return all;
}

// Those of cards since ATTENTION_SINCE.
inline std::vector<Kernel> attention() {
  std::vector<Kernel> all{Attention::bias_sum()};
  for (auto type : {Type::bf16, Type::f16}) {
    for (int64_t width = 32; width <= WIDEST_HEAD; width += 32) {
      for (bool has_bias : {false, true}) {
        for (bool drops : {false, true}) {
          Attention of{type, width, has_bias, drops};
          if (width == 32 && !has_bias && !drops) all.push_back(of.rows());
          for (auto kernel : {of.forward(), of.of_keys(), of.of_queries()}) all.push_back(kernel);
        }
      }
    }
  }
  return all;
}

}  // namespace kernels
