// Errors of the outside world as values: Result<T> holds a T or one Error.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "grace/base/check.h"

namespace grace {

enum class ErrorKind {
  kInvalidInput,  // what was asked for, or a file's content, is impossible
  kIo,            // the operating system refused
  kUnsupported,   // well-formed, but not something this program can do
  kPeerLost,      // another rank is gone or answers nonsense
  kTimeout,       // a deadline passed
  kInternal,      // a fault of ours that could be reported in time
};

// `message` is one line: place, value, bound. Example: `t.safetensors: expert 64 is outside [0, 64)`.
struct Error {
  ErrorKind kind = ErrorKind::kInternal;
  std::string message;
};

inline Error invalid_input(std::string message) { return {ErrorKind::kInvalidInput, std::move(message)}; }
inline Error io_error(std::string message) { return {ErrorKind::kIo, std::move(message)}; }
inline Error unsupported(std::string message) { return {ErrorKind::kUnsupported, std::move(message)}; }
inline Error peer_lost(std::string message) { return {ErrorKind::kPeerLost, std::move(message)}; }
inline Error timed_out(std::string message) { return {ErrorKind::kTimeout, std::move(message)}; }
inline Error internal_error(std::string message) { return {ErrorKind::kInternal, std::move(message)}; }

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : held_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit, so that `return x;` works
  Result(Error error) : held_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit, as above

  bool ok() const { return held_.index() == 0; }
  // REQUIRES: ok().
  T& value() & { return check_ok(), std::get<0>(held_); }
  const T& value() const& { return check_ok(), std::get<0>(held_); }
  T&& value() && { return check_ok(), std::get<0>(std::move(held_)); }
  // REQUIRES: !ok().
  const Error& error() const& { return std::get<1>(held_); }
  Error&& error() && { return std::get<1>(std::move(held_)); }

 private:
  void check_ok() const { GRACE_CHECK(ok(), std::get<1>(held_).message); }
  std::variant<T, Error> held_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error)
      : error_(std::move(error)), ok_(false) {}  // NOLINT: implicit, so that `return error;` works

  bool ok() const { return ok_; }
  void value() const { GRACE_CHECK(ok_, error_.message); }
  const Error& error() const& { return error_; }
  Error&& error() && { return std::move(error_); }

 private:
  Error error_;
  bool ok_ = true;
};

using Status = Result<void>;

}  // namespace grace

// The value of a Result, or return its error from the enclosing function: `const Plan plan =
// GRACE_TRY(read_plan(path));`
#define GRACE_TRY(expr)                                                     \
  __extension__({                                                           \
    auto&& grace_try_result = (expr);                                       \
    if (!grace_try_result.ok()) return std::move(grace_try_result).error(); \
    std::move(grace_try_result).value();                                    \
  })
