// Checks for faults of our own. GRACE_CHECK is always on; GRACE_AUDIT only in debug builds, for what is
// costly.
#pragma once

#include <string_view>

namespace grace {

// Ends the process with `file:line: condition: what` on stderr.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, std::string_view what);

}  // namespace grace

#define GRACE_CHECK(condition, what) \
  ((condition) ? static_cast<void>(0) : ::grace::check_failed(__FILE__, __LINE__, #condition, (what)))

#ifdef NDEBUG
#define GRACE_AUDIT(condition, what) static_cast<void>(0)
#else
#define GRACE_AUDIT(condition, what) GRACE_CHECK(condition, what)
#endif
