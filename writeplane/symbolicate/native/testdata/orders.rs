use std::collections::HashMap;

#[derive(Debug, Clone)]
struct Item {
    name: String,
    cents: u32,
}

trait Price {
    fn price(&self) -> u32;
}

impl Price for Item {
    #[inline]
    fn price(&self) -> u32 {
        self.cents.checked_mul(2).expect("too dear")
    }
}

fn sum<T: Price>(items: &[T]) -> u32 {
    items.iter().map(|i| i.price()).sum()
}

fn main() {
    let n = std::env::args().count();
    let items: Vec<Item> = (0..n as u32 + 5).map(|i| Item { name: format!("item{i}"), cents: i * 100 }).collect();
    let mut by_name: HashMap<String, u32> = HashMap::new();
    for i in &items {
        *by_name.entry(i.name.clone()).or_default() += i.price();
    }
    let mut sorted: Vec<_> = by_name.into_iter().collect();
    sorted.sort_by(|a, b| b.1.cmp(&a.1));
    println!("{} {:?}", sum(&items), sorted.first());
}
