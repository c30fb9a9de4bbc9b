#include "bench_page.h"

#include <fmt/format.h>

#include <thread>

#include "grace/files/mapped_file.h"

namespace grace::app {

std::string with_section(std::string page, std::string_view name, std::string_view body) {
  const std::string begin = fmt::format("<!-- section {} -->", name),
                    end = fmt::format("<!-- end {} -->", name);
  const std::string section = fmt::format("{}\n{}\n{}", begin, body, end);
  const std::size_t from = page.find(begin);
  const std::size_t to = from == std::string::npos ? from : page.find(end, from);
  if (to != std::string::npos) return page.replace(from, to + end.size() - from, section);
  if (page.empty()) page = "# Benchmarks\n\nEach section is written by the command that it names.\n";
  return page + "\n" + section + "\n";
}

std::string machine_name() {
  std::string model = "unknown processor";
  const Result<std::string> info = read_text("/proc/cpuinfo");
  if (info.ok()) {
    const std::size_t at = info.value().find("model name");
    const std::size_t colon = at == std::string::npos ? at : info.value().find(": ", at);
    if (colon != std::string::npos)
      model = info.value().substr(colon + 2, info.value().find('\n', colon) - colon - 2);
  }
  return fmt::format("{}, {} cores", model, std::thread::hardware_concurrency());
}

}  // namespace grace::app
