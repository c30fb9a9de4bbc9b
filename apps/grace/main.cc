#include <cstdio>

int main() {
  std::puts("grace " GRACE_VERSION);
  return 0;
}
