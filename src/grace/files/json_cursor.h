// A place in JSON text that moves over one value after another: for lines by the gigabyte, of which a tree
// would cost more than the reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace grace {

// The first fault sticks: every later call does nothing and says no, so that the end of a row of calls is
// soon enough to look. Thread-compatible; a view of the text.
class JsonCursor {
 public:
  explicit JsonCursor(std::string_view text) : begin_(text.data()), at_(begin_), end_(begin_ + text.size()) {}

  bool ok() const { return problem_.empty(); }
  std::string_view problem() const { return problem_; }  // such as "not JSON"
  std::size_t offset() const { return static_cast<std::size_t>(at_ - begin_); }
  // Records a fault of the caller's own.
  void fail(std::string_view problem) {
    if (ok()) problem_ = problem;
  }

  // What the next value begins with: one of {["-0..9tfn, or 0 at the end of the text.
  char peek();
  // Enters an object or a list.
  bool enter(char opening) { return expect(opening); }
  // The next key of the object that was entered, without its quotes and as it is spelt; false after the last.
  bool next_key(std::string_view& key);
  // Whether the list that was entered has another element, which then follows.
  bool next_element();
  // Values. Text is as it is spelt, escapes included.
  std::string_view text();
  std::int64_t integer();
  bool boolean();
  bool null();  // whether the value was null, which is then behind
  // Any value, which is checked for its brackets, commas and quotes. At most 64 deep.
  void skip();
  // A list of lists of whole numbers of 32 bits, in one go, appended to `out`; the number of lists and the
  // length of each, which must be equal. Numbers that do not fit become the nearest that does.
  void rows(std::vector<std::int32_t>& out, std::int64_t& num_rows, std::int64_t& width);
  // Whether nothing but space is left.
  bool at_end();

 private:
  void space();
  bool expect(char c);
  bool take(char c);
  void skip_value(int depth);
  void skip_number();
  bool row(std::vector<std::int32_t>& out);

  const char* begin_;
  const char* at_;
  const char* end_;
  bool first_ = false;  // of an object or list that was just entered
  std::string_view problem_;
};

}  // namespace grace
