// Compiles the kernels that the trainer can launch with NVRTC, for every kind of card: no card is needed. Each must fit the shared memory of
// a block, and may keep no more in local memory than `SPILLS` says.
// usage: nvrtc LIBNVRTC SOURCE PART PARTS [all]
// SOURCE is the text that the trainer compiles. Of the cards only those with number % PARTS == PART. Without `all` a card takes every seventh
// kernel, each card another seventh.

#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "../../src/pipe-trainer/torch/kernels.hpp"

namespace {

[[noreturn]] void fail(const std::string& why) {
  printf("FAILED: %s\n", why.c_str());
  exit(1);
}

// --- Cards --------------------------------------------------------------------------------------------------------------------

struct Card {
  int capability;
  // Bytes of shared memory that a block may have, after the table of compute capabilities in the CUDA programming guide.
  unsigned shared;
  const char* example;

  std::string name() const { return std::to_string(capability / 10) + "." + std::to_string(capability % 10); }

  std::vector<kernels::Kernel> kernels() const {
    auto all = kernels::general();
    if (capability < kernels::ATTENTION_SINCE) return all;
    for (auto& kernel : kernels::attention()) all.push_back(kernel);
    return all;
  }
};

const Card CARDS[] = {
    {75, 64 << 10, "T4"},    {80, 163 << 10, "A100"},     {86, 99 << 10, "RTX 3090"}, {89, 99 << 10, "RTX 4090"},
    {90, 227 << 10, "H200"}, {100, 227 << 10, "B200"},    {120, 99 << 10, "RTX 5090"},
};

// Registers of a multiprocessor, of which a block must find enough.
const unsigned REGISTERS = 65536;

// Bytes of spills that are accepted, by the beginning of the kernel's name: a few in some of those that use all 255 registers, none on 9.0. The
// others have none.
const std::map<std::string, unsigned> SPILLS = {
    {"attention_backward_keys<", 24},
    {"attention_forward<", 20},
};

unsigned accepted_spills(const std::string& kernel) {
  for (const auto& [beginning, bytes] : SPILLS) {
    if (kernel.rfind(beginning, 0) == 0) return bytes;
  }
  return 0;
}

// --- NVRTC --------------------------------------------------------------------------------------------------------------------

struct Compiler {
  int (*create)(void** program, const char* source, const char* name, int, const char**, const char**);
  int (*add_name)(void* program, const char* expression);
  int (*compile)(void* program, int count, const char** options);
  int (*log_size)(void* program, size_t*);
  int (*log)(void* program, char*);
  int (*lowered)(void* program, const char* expression, const char** name);
  int (*destroy)(void** program);

  explicit Compiler(const std::string& path) {
    // It looks for its other half by name alone; it lies beside it.
    auto beside = path.substr(0, path.rfind('/') + 1) + "libnvrtc-builtins.so." + path.substr(path.rfind(".so.") + 4) + ".0";
    if (!dlopen(beside.c_str(), RTLD_NOW | RTLD_GLOBAL)) fail(dlerror());
    void* library = dlopen(path.c_str(), RTLD_NOW);
    if (!library) fail(dlerror());
    auto find = [&](auto& into, const char* name) {
      into = reinterpret_cast<std::remove_reference_t<decltype(into)>>(dlsym(library, name));
      if (!into) fail(std::string("NVRTC has no ") + name);
    };
    find(create, "nvrtcCreateProgram");
    find(add_name, "nvrtcAddNameExpression");
    find(compile, "nvrtcCompileProgram");
    find(log_size, "nvrtcGetProgramLogSize");
    find(log, "nvrtcGetProgramLog");
    find(lowered, "nvrtcGetLoweredName");
    find(destroy, "nvrtcDestroyProgram");
  }
};

// What the assembler says about a kernel.
struct Use {
  unsigned registers = 0, stack = 0, spilled = 0, shared = 0;
};

struct Compiled {
  bool done;
  std::string log;
  std::map<std::string, Use> uses;  // by the name of the kernel
};

// Names stand alone in the log, each with its properties behind it.
std::map<std::string, Use> read_log(const std::string& log) {
  std::map<std::string, Use> uses;
  Use* use = nullptr;
  std::istringstream lines(log);
  std::smatch found;
  static const std::regex entry("Compiling entry function '([^']+)'"), stack("(\\d+) bytes stack frame, (\\d+) bytes spill stores"),
      used("Used (\\d+) registers"), shared("(\\d+) bytes smem");
  auto number = [&](int group) { return unsigned(std::stoul(found[group])); };
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_search(line, found, entry)) use = &uses[found[1]];
    if (!use) continue;
    if (std::regex_search(line, found, stack)) use->stack = number(1), use->spilled = number(2);
    if (std::regex_search(line, found, used)) use->registers = number(1);
    if (std::regex_search(line, found, shared)) use->shared = number(1);
  }
  return uses;
}

Compiled compile(const Compiler& nvrtc, const std::string& source, const std::vector<kernels::Kernel>& all, int capability) {
  auto check = [](int status, const char* what) {
    if (status != 0) fail(std::string(what) + " returned " + std::to_string(status));
  };
  auto text = source;
  for (const auto& kernel : all) {
    if (!kernel.bytes.empty()) text += "static_assert(" + kernel.bytes + " == " + std::to_string(kernel.shared) + ", \"" + kernel.name + "\");\n";
  }
  void* program = nullptr;
  check(nvrtc.create(&program, text.c_str(), "kernels.cu", 0, nullptr, nullptr), "nvrtcCreateProgram");
  for (const auto& kernel : all) check(nvrtc.add_name(program, kernel.name.c_str()), "nvrtcAddNameExpression");
  auto architecture = "--gpu-architecture=sm_" + std::to_string(capability);
  const char* options[] = {architecture.c_str(), "--std=c++17", "--ptxas-options=-v"};
  Compiled out;
  out.done = nvrtc.compile(program, 3, options) == 0;
  size_t size = 0;
  nvrtc.log_size(program, &size);
  out.log.resize(size);
  nvrtc.log(program, out.log.data());
  if (out.done) {
    auto by_symbol = read_log(out.log);
    for (const auto& kernel : all) {
      const char* symbol = nullptr;
      check(nvrtc.lowered(program, kernel.name.c_str(), &symbol), "nvrtcGetLoweredName");
      if (!by_symbol.count(symbol)) fail("NVRTC says nothing about the registers of " + kernel.name);
      out.uses[kernel.name] = by_symbol[symbol];
    }
  }
  nvrtc.destroy(&program);
  return out;
}

// --- The test -----------------------------------------------------------------------------------------------------------------

// The number of kernels that are not as they should be.
int check(const Card& card, const std::vector<kernels::Kernel>& kernels, const std::map<std::string, Use>& uses) {
  int wrong = 0;
  auto complain = [&](const std::string& kernel, const std::string& what, unsigned found, unsigned most) {
    printf("FAILED: %s on %s: %u %s, at most %u\n", kernel.c_str(), card.name().c_str(), found, what.c_str(), most);
    wrong++;
  };
  for (const auto& kernel : kernels) {
    auto found = uses.find(kernel.name);
    auto use = found == uses.end() ? Use{} : found->second;
    auto shared = use.shared + kernel.shared, registers = (use.registers + 7) / 8 * 8 * kernel.threads;
    if (shared > card.shared) complain(kernel.name, "bytes of shared memory", shared, card.shared);
    if (registers > REGISTERS) complain(kernel.name, "registers in a block", registers, REGISTERS);
    if (use.spilled > accepted_spills(kernel.name)) complain(kernel.name, "bytes of spills", use.spilled, accepted_spills(kernel.name));
  }
  return wrong;
}

// A card that has no attention kernels is one that cannot have them.
int check_without_attention(const Compiler& nvrtc, const Card& card, const std::string& source) {
  auto tried = compile(nvrtc, source, {kernels::Attention{kernels::Type::bf16, 64, false, false}.forward()}, card.capability);
  if (!tried.done && tried.log.find("requires .target sm_80") != std::string::npos) return 0;
  printf("FAILED: %s has no attention kernels, for another reason than its instructions: %s\n", card.name().c_str(), tried.log.c_str());
  return 1;
}

}  // namespace

int main(int count, char** words) {
  if (count < 5) fail("usage: nvrtc LIBNVRTC SOURCE PART PARTS [all]");
  Compiler nvrtc(words[1]);
  std::ifstream file(words[2]);
  std::string source{std::istreambuf_iterator<char>(file), {}};
  if (source.empty()) fail(std::string("nothing in ") + words[2]);
  size_t part = std::stoul(words[3]), parts = std::stoul(words[4]);
  bool everything = count > 5;
  int wrong = 0;
  for (size_t number = part; number < std::size(CARDS); number += parts) {
    const auto& card = CARDS[number];
    auto began = std::chrono::steady_clock::now();
    auto all = card.kernels();
    std::vector<kernels::Kernel> chosen;
    for (size_t i = 0; i < all.size(); i++) {
      if (everything || i % std::size(CARDS) == number) chosen.push_back(all[i]);
    }
    auto compiled = compile(nvrtc, source, chosen, card.capability);
    if (!compiled.done) {
      printf("FAILED: the kernels cannot be compiled for %s: %s\n", card.name().c_str(), compiled.log.c_str());
      wrong++;
      continue;
    }
    wrong += check(card, all, compiled.uses);
    if (card.capability < kernels::ATTENTION_SINCE) wrong += check_without_attention(nvrtc, card, source);
    Use most;
    for (const auto& [name, use] : compiled.uses) {
      most.registers = std::max(most.registers, use.registers);
      most.spilled = std::max(most.spilled, use.spilled);
      if (getenv("PIPE_KERNEL_USE")) {
        printf("%s %s: %u registers, %u spilled, %u stack, %u shared\n", card.name().c_str(), name.c_str(), use.registers, use.spilled,
               use.stack, use.shared);
      }
    }
    unsigned shared = 0;
    for (const auto& kernel : all) shared = std::max(shared, kernel.shared);
    auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    printf("%-4s (%s): %zu of %zu kernels in %.0f s; at most %u registers, %u bytes spilled, %u of %u KiB of shared memory\n",
           card.name().c_str(), card.example, chosen.size(), all.size(), seconds, most.registers, most.spilled, (shared + 1023) / 1024,
           card.shared >> 10);
    fflush(stdout);
  }
  return wrong ? 1 : 0;
}
