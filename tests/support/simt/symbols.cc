// Names of kernels for reports.
#include <cxxabi.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/support/simt/engine.h"

namespace simt {

// Out of the symbol table of the running file: kernels are often in no dynamic table.
std::string NameOfFunction(const void* address) {
  struct Object {
    uintptr_t base = 0;
  } object;
  dl_iterate_phdr([](dl_phdr_info* info, size_t, void* data) {
    static_cast<Object*>(data)->base = info->dlpi_addr;
    return 1;  // the first is the program
  }, &object);
  const uintptr_t want = reinterpret_cast<uintptr_t>(address) - object.base;
  std::ifstream in("/proc/self/exe", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  Elf64_Ehdr header;
  std::string name = fmt::format("kernel at {}", address);
  if (bytes.size() < sizeof(header)) return name;
  memcpy(&header, bytes.data(), sizeof(header));
  const auto section = [&](unsigned i) {
    Elf64_Shdr s{};
    memcpy(&s, bytes.data() + header.e_shoff + i * sizeof(s), sizeof(s));
    return s;
  };
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr s = section(i);
    if (s.sh_type != SHT_SYMTAB) continue;
    const Elf64_Shdr strings = section(s.sh_link);
    for (uint64_t at = 0; at < s.sh_size; at += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      memcpy(&symbol, bytes.data() + s.sh_offset + at, sizeof(symbol));
      if (symbol.st_value != want || ELF64_ST_TYPE(symbol.st_info) != STT_FUNC) continue;
      const char* mangled = bytes.data() + strings.sh_offset + symbol.st_name;
      int status = 0;
      char* plain = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
      name = status == 0 ? plain : mangled;
      free(plain);
      // "void ns::(anonymous namespace)::Kernel<int>(args)" -> "Kernel<int>"
      int depth = 0;
      size_t end = name.size();
      for (size_t c = 0; c < name.size(); ++c) {
        depth += name[c] == '<';
        depth -= name[c] == '>';
        if (name[c] == '(' && depth == 0 && !name.substr(c).starts_with("(anonymous namespace)")) {
          end = c;
          break;
        }
      }
      name.resize(end);
      depth = 0;
      for (size_t c = name.size(); c-- > 0;) {
        depth += name[c] == '>';
        depth -= name[c] == '<';
        if (depth == 0 && (name[c] == ':' || name[c] == ' ')) {
          name.erase(0, c + 1);
          break;
        }
      }
      return name;
    }
  }
  return name;
}

}  // namespace simt
