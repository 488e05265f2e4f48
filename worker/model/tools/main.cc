// holdfast-make-model: writes a tiny complete GGUF model (see make_model.h for what each kind is).
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <fstream>
#include <map>
#include <sstream>

#include "worker/model/tools/make_model.h"

int main(int argc, char** argv) {
  using holdfast::kernels::DType;
  CLI::App app("Writes a tiny complete GGUF model: weights, tokenizer, chat template");
  std::string kind, out, scripts_path;
  holdfast::model::RandomModelOptions random;
  int layers = 0;
  uint32_t context = 4096;
  bool untied = false;
  const std::map<std::string, DType> types = {{"f32", DType::kF32},   {"f16", DType::kF16},   {"bf16", DType::kBF16}, {"q4_0", DType::kQ4_0},
                                              {"q4_1", DType::kQ4_1}, {"q5_0", DType::kQ5_0}, {"q5_1", DType::kQ5_1}, {"q8_0", DType::kQ8_0},
                                              {"q4_k", DType::kQ4_K}, {"q6_k", DType::kQ6_K}, {"iq4_nl", DType::kIQ4_NL}, {"mxfp4", DType::kMXFP4}};
  app.add_option("--kind", kind, "random-gemma4, gemma4-26b (its shape, cut to --layers; 0.5 GB each), random-llama or script")
      ->required()
      ->check(CLI::IsMember({"random-gemma4", "gemma4-26b", "random-llama", "script"}));
  app.add_option("--seed", random.seed, "of the random weights");
  app.add_option("--type", random.type, "of the random matrices: f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 iq4_nl mxfp4, and q4_k q6_k (random-llama, --dim 256)")->transform(CLI::CheckedTransformer(types).description(""))->type_name("TYPE");
  app.add_option("--layers", layers, "default 6 (script: 1)")->check(CLI::Range(1, 512));
  app.add_option("--dim", random.dim, "embedding length of random models, a multiple of 64")->check(CLI::Range(64, 8192));
  app.add_option("--context", context, "context length")->check(CLI::Range(16, 1 << 24));
  app.add_option("--window", random.window, "sliding window of random-gemma4")->check(CLI::Range(1, 1 << 20));
  app.add_flag("--experts", random.experts, "random-gemma4: mixture of experts");
  app.add_option("--per-layer", random.per_layer, "random-gemma4: width of per-layer embeddings, a multiple of 32");
  app.add_flag("--untied", untied, "random-llama: an output matrix of its own");
  app.add_flag("--rope-freqs", random.rope_freqs, "random-llama: rope_freqs.weight");
  app.add_flag("--biases", random.biases, "random-llama: attention biases");
  app.add_option("--scripts", scripts_path, "script: JSON file of scenarios (default: four built-in ones)")->check(CLI::ExistingFile);
  app.add_option("out", out, "file to write")->required();
  CLI11_PARSE(app, argc, argv);

  holdfast::model::GgufWriter writer;
  std::string error;
  if (kind == "script") {
    holdfast::model::ScriptModelOptions options;
    options.context = context;
    options.layers = layers > 0 ? layers : 1;
    if (!scripts_path.empty()) {
      std::ifstream in(scripts_path);
      std::stringstream text;
      text << in.rdbuf();
      if (!holdfast::model::ParseScripts(text.str(), &options.scripts, &error)) {
        fmt::print(stderr, "{}: {}\n", scripts_path, error);
        return 64;
      }
    }
    if (!holdfast::model::ScriptModel(options, &writer, &error)) {
      fmt::print(stderr, "{}\n", error);
      return 64;
    }
  } else if (kind == "gemma4-26b") {
    auto large = holdfast::model::Gemma4Large(layers > 0 ? layers : 6);
    large.seed = random.seed;
    if (large.layers < 3) {
      fmt::print(stderr, "gemma4-26b has at least 3 layers\n");
      return 64;
    }
    writer = holdfast::model::RandomGemma4(large);
  } else {
    random.context = context;
    random.tied = !untied;
    if (layers > 0) random.layers = layers;
    if (random.dim % 64 != 0 || random.per_layer % 32 != 0 || random.per_layer < 0 || (kind == "random-gemma4" && random.layers < (random.per_layer > 0 ? 4 : 3))) {
      fmt::print(stderr, "--dim must be a multiple of 64, --per-layer one of 32, and random-gemma4 has at least 3 layers (4 with --per-layer)\n");
      return 64;
    }
    if (holdfast::kernels::InfoOf(random.type).block_elements == 256 && (kind != "random-llama" || random.dim % 256 != 0)) {
      fmt::print(stderr, "q4_k and q6_k have blocks of 256: they need --kind random-llama and a --dim that is a multiple of 256\n");
      return 64;
    }
    writer = kind == "random-gemma4" ? holdfast::model::RandomGemma4(random) : holdfast::model::RandomLlama(random);
  }
  if (!writer.WriteFile(out, &error)) {
    fmt::print(stderr, "{}\n", error);
    return 69;
  }
  return 0;
}
