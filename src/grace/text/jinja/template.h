// Jinja templates as chat models carry them.
#pragma once

#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "grace/base/result.h"
#include "grace/files/json.h"

namespace grace::jinja {

// Immutable, thread-safe.
class Template {
 public:
  // With trim_blocks, lstrip_blocks, loop controls and `{% generation %}`, as the reference sets Jinja up.
  // Errors: `PLACE:LINE: …`, invalid_input for what Jinja refuses as well, or bytes that are not UTF-8;
  // unsupported, naming it, for what only we do not know, and for nesting and length that no chat template
  // has.
  static Result<Template> parse(std::string_view source, std::string_view place);
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  // What it makes of `variables`, name by name; `now` is for strftime_now. Errors: as above; the message of
  // raise_exception as invalid_input; unsupported for a run that takes more than 2^27 steps and bytes.
  Result<std::string> render(const std::map<std::string, Json>& variables, const std::tm& now) const;

 private:
  struct Impl;
  explicit Template(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace grace::jinja
