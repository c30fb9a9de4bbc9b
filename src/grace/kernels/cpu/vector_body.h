// exp and what is made of it, written once over vectors; included as block_body.h is. Its Lanes need beside
// that add, sub, mul, div, min, max, set, round (to nearest even) and power_of_two.

// e^x for x in [-87, 88], beyond which it stays where it is: 2^n times a polynomial on [-ln2 / 2, ln2 / 2]
// (Cephes, expf), within two units in the last place.
template <class L>
__attribute__((always_inline)) static inline typename L::Vector exp_of(typename L::Vector x) {
  using V = typename L::Vector;
  x = L::min(L::max(x, L::set(-87.0F)), L::set(88.0F));
  const V n = L::round(L::mul(x, L::set(1.44269504088896341F)));
  V r = L::multiply_add(n, L::set(-0.693359375F), x);
  r = L::multiply_add(n, L::set(2.12194440e-4F), r);
  V p = L::set(1.9875691500e-4F);
  p = L::multiply_add(p, r, L::set(1.3981999507e-3F));
  p = L::multiply_add(p, r, L::set(8.3334519073e-3F));
  p = L::multiply_add(p, r, L::set(4.1665795894e-2F));
  p = L::multiply_add(p, r, L::set(1.6666665459e-1F));
  p = L::multiply_add(p, r, L::set(5.0000001201e-1F));
  p = L::multiply_add(p, L::mul(r, r), L::add(r, L::set(1.0F)));
  return L::mul(p, L::power_of_two(n));
}

template <class L>
void silu_times_up(const float* sums, float* out) {
  constexpr int kHalf = 16;
  for (int i = 0; i < kHalf; i += L::kLanes) {
    const typename L::Vector gate = L::load(sums + i);
    const typename L::Vector below = L::add(L::set(1.0F), exp_of<L>(L::sub(L::zero(), gate)));
    L::store(out + i, L::mul(L::div(gate, below), L::load(sums + kHalf + i)));
  }
}

template <class L>
constexpr VectorFunctions functions_of() {
  return {&silu_times_up<L>, &attend<L>};
}
